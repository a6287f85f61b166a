#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "transport/channel_address.h"
#include "transport/inproc/inproc_transport.h"
#include "transport/wire/wire_check.h"

// Input: what arrives as one frame, header then payload. It goes through the parser as it is, through a real channel in
// place of a good frame's bytes, and, with right checksums so that the checks behind them are reached, through the
// channel once more. A channel with a key delivers none of it.

namespace {

using namespace winnow;

// Sends one frame whose header and payload are replaced by the input on the way.
void ThroughChannel(std::span<const std::byte> input, bool seal, DataPlaneMode mode) {
  wire::FrameHeader forged{};
  std::memcpy(&forged, input.data(), std::min(input.size(), sizeof(forged)));
  const std::span<const std::byte> rest = input.subspan(std::min(input.size(), sizeof(forged)));
  TransportOptions options;
  options.incarnation = 7;
  options.data_plane_mode = mode;
  uint32_t channel_of_b = 0;
  const auto a = NewInprocTransport(options, [&](wire::FrameHeader& header, std::span<std::byte> payload) {
    header = forged;
    header.channel = channel_of_b;
    if (seal) {
      header.source_incarnation = 7;
      SealFrame(header, payload);
    }
    return PostFault::kNone;
  });
  const auto b = NewInprocTransport(options);
  const auto at_a = a->NewChannel().value(), at_b = b->NewChannel().value();
  channel_of_b = at_b->id();
  WINNOW_CHECK(at_a->Connect(at_b->LocalAddress()).ok() && at_b->Connect(at_a->LocalAddress()).ok());
  WINNOW_CHECK(at_a->TakeProtection(at_b->DecideProtection(DataPlaneMode::kAuto).value()).ok());
  SendBuffer buffer = at_a->Allocate(std::min(rest.size(), wire::kMaxPayloadBytes)).value();
  std::memcpy(buffer.payload().data(), rest.data(), buffer.payload().size());
  wire::FrameHeader header{};
  header.type = wire::FrameType::kLayer;
  WINNOW_CHECK(at_a->Post(header, std::move(buffer)).ok());
  int delivered = 0;
  b->SetHandler([&](Channel&, ReceivedFrame frame) {
    WINNOW_CHECK(CheckFrameHeader(frame.header()).ok() && frame.header().frame_number == 1);
    WINNOW_CHECK(CheckFramePayload(frame.header(), frame.payload()).ok());
    WINNOW_CHECK(mode == DataPlaneMode::kPlain);
    ++delivered;
  });
  WINNOW_CHECK(b->Progress() == delivered);
  const TransportCounters seen = b->counters();
  WINNOW_CHECK(seen.bad_frames == (at_b->failed().ok() ? 0u : 1u));
  WINNOW_CHECK(delivered + seen.bad_frames + seen.stray_frames <= 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> input = std::as_bytes(std::span(data, size));
  if (const auto header = ParseFrameHeader(input); header.ok()) {
    WINNOW_CHECK(header->payload_bytes <= wire::kMaxPayloadBytes && IsKnownFrameType(header->type));
    (void)CheckFramePayload(*header, input.subspan(sizeof(*header)));
  }
  (void)ChannelAddress::Decode({reinterpret_cast<const char*>(data), size}, ChannelAddress::Kind::kUcx);
  for (const DataPlaneMode mode : {DataPlaneMode::kPlain, DataPlaneMode::kAuthenticated}) {
    ThroughChannel(input, /*seal=*/false, mode);
    ThroughChannel(input, /*seal=*/true, mode);
  }
  return 0;
}
