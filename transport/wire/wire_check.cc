#include "transport/wire/wire_check.h"

#include <cstring>

#include "transport/wire/crc32c.h"

namespace winnow {
namespace {

uint32_t HeaderChecksum(wire::FrameHeader header) {
  header.header_crc32c = 0;
  return Crc32c(std::as_bytes(std::span(&header, 1)));
}

}  // namespace

bool IsKnownFrameType(wire::FrameType type) {
  switch (type) {
    case wire::FrameType::kStepPlan:
    case wire::FrameType::kLayer:
    case wire::FrameType::kAppendRange:
    case wire::FrameType::kPromptQueries:
    case wire::FrameType::kPrefixQueries:
    case wire::FrameType::kBatchRow:
    case wire::FrameType::kStaged:
    case wire::FrameType::kStepRows:
    case wire::FrameType::kState:
    case wire::FrameType::kStateRefill:
    case wire::FrameType::kStagingFree:
    case wire::FrameType::kBatchRowAnswer:
    case wire::FrameType::kDelta:
    case wire::FrameType::kPartial:
    case wire::FrameType::kWatermark:
    case wire::FrameType::kRefill:
    case wire::FrameType::kRefillDone:
    case wire::FrameType::kPrefixStates:
    case wire::FrameType::kFenced:
    case wire::FrameType::kTransferFailed:
    case wire::FrameType::kCredit:
      return true;
  }
  return false;
}

void SealFrame(wire::FrameHeader& header, std::span<const std::byte> payload, const PayloadChecksum& checksum) {
  header.magic = wire::kMagic;
  header.version = wire::kVersion;
  header.payload_bytes = payload.size();
  header.payload_crc32c = checksum.Of(payload);
  header.tag = {};
  SealHeader(header);
}

void SealHeader(wire::FrameHeader& header) {
  header.header_crc32c = HeaderChecksum(header);
}

absl::StatusOr<wire::FrameHeader> ParseFrameHeader(std::span<const std::byte> bytes) {
  wire::FrameHeader header;
  if (bytes.size() < sizeof(header)) {
    return absl::DataLossError(absl::StrCat("frame header is cut off at ", bytes.size(), " bytes"));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  WINNOW_RETURN_IF_ERROR(CheckFrameHeader(header));
  return header;
}

absl::Status CheckFrameHeader(const wire::FrameHeader& header) {
  if (header.magic != wire::kMagic) return absl::DataLossError("frame has a wrong magic number");
  if (header.version != wire::kVersion) {
    return absl::DataLossError(absl::StrCat("frame has wire version ", header.version, ", not ", wire::kVersion));
  }
  if (header.header_crc32c != HeaderChecksum(header)) return absl::DataLossError("frame header fails its checksum");
  if (!IsKnownFrameType(header.type)) {
    return absl::DataLossError(absl::StrCat("frame has unknown type ", static_cast<int>(header.type)));
  }
  if (header.phase != wire::Phase::kRefine && header.phase != wire::Phase::kPrefetch) {
    return absl::DataLossError(absl::StrCat("frame has unknown phase ", static_cast<int>(header.phase)));
  }
  if (header.payload_bytes > wire::kMaxPayloadBytes) {
    return absl::DataLossError(absl::StrCat("frame names ", header.payload_bytes, " payload bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckFramePayload(const wire::FrameHeader& header, std::span<const std::byte> payload,
                               const PayloadChecksum& checksum) {
  if (payload.size() != header.payload_bytes) {
    return absl::DataLossError(
        absl::StrCat("frame carries ", payload.size(), " payload bytes, its header names ", header.payload_bytes));
  }
  if (checksum.Of(payload) != header.payload_crc32c) return absl::DataLossError("frame payload fails its checksum");
  return absl::OkStatus();
}

}  // namespace winnow
