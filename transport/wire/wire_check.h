#pragma once
#include <cstddef>
#include <span>

#include "common/base/status.h"
#include "transport/wire/payload_checksum.h"
#include "transport/wire/wire.h"

// What makes bytes a frame: every implementation seals and checks frames here and nowhere else.

namespace winnow {

bool IsKnownFrameType(wire::FrameType type);

// Fills in magic, version, payload_bytes, both checksums and the tag of links without a key; everything else must be
// set.
void SealFrame(wire::FrameHeader& header, std::span<const std::byte> payload, const PayloadChecksum& checksum = {});
// Fills in the header's checksum alone, when all else is set.
void SealHeader(wire::FrameHeader& header);

// The header at the start of `bytes`, which may have any alignment: DATA_LOSS unless magic, version, type, phase, sizes
// and header checksum are right. The payload is not looked at.
absl::StatusOr<wire::FrameHeader> ParseFrameHeader(std::span<const std::byte> bytes);
absl::Status CheckFrameHeader(const wire::FrameHeader& header);

// DATA_LOSS unless `payload` has the size and checksum that the (checked) header names.
absl::Status CheckFramePayload(const wire::FrameHeader& header, std::span<const std::byte> payload,
                               const PayloadChecksum& checksum = {});

}  // namespace winnow
