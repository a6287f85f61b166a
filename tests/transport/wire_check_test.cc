#include "transport/wire/wire_check.h"

#include "tests/transport/links.h"

namespace winnow {
namespace {

TEST(WireCheckTest, SealedFramesPass) {
  const std::vector<std::byte> payload = SomeBytes(321, 1);
  wire::FrameHeader header = SomeHeader();
  SealFrame(header, payload);
  EXPECT_EQ(CheckFrameHeader(header), absl::OkStatus());
  EXPECT_EQ(CheckFramePayload(header, payload), absl::OkStatus());
  EXPECT_EQ(ParseFrameHeader(std::as_bytes(std::span(&header, 1))).status(), absl::OkStatus());
}

TEST(WireCheckTest, EveryChangedBitOfAHeaderIsFound) {
  wire::FrameHeader header = SomeHeader();
  SealFrame(header, SomeBytes(10, 1));
  for (size_t bit = 0; bit < 8 * sizeof(header); ++bit) {
    wire::FrameHeader bent = header;
    reinterpret_cast<uint8_t*>(&bent)[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_TRUE(absl::IsDataLoss(CheckFrameHeader(bent))) << "bit " << bit;
  }
}

TEST(WireCheckTest, EveryChangedBitOfAPayloadIsFound) {
  std::vector<std::byte> payload = SomeBytes(100, 1);
  wire::FrameHeader header = SomeHeader();
  SealFrame(header, payload);
  for (size_t bit = 0; bit < 8 * payload.size(); ++bit) {
    payload[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_TRUE(absl::IsDataLoss(CheckFramePayload(header, payload))) << "bit " << bit;
    payload[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  EXPECT_TRUE(absl::IsDataLoss(CheckFramePayload(header, std::span(payload).first(99))));
}

TEST(WireCheckTest, CutOffHeadersAreFound) {
  wire::FrameHeader header = SomeHeader();
  SealFrame(header, {});
  const std::span<const std::byte> bytes = std::as_bytes(std::span(&header, 1));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(ParseFrameHeader(bytes.first(size)).status())) << size;
  }
}

// Values that are wrong although their checksum is right.
TEST(WireCheckTest, WellSealedNonsenseIsRefused) {
  wire::FrameHeader unknown_type = SomeHeader();
  unknown_type.type = static_cast<wire::FrameType>(200);
  SealFrame(unknown_type, {});
  EXPECT_TRUE(absl::IsDataLoss(CheckFrameHeader(unknown_type)));

  wire::FrameHeader unknown_phase = SomeHeader();
  unknown_phase.phase = static_cast<wire::Phase>(2);
  SealFrame(unknown_phase, {});
  EXPECT_TRUE(absl::IsDataLoss(CheckFrameHeader(unknown_phase)));

  wire::FrameHeader too_large = SomeHeader();
  SealFrame(too_large, std::vector<std::byte>(wire::kMaxPayloadBytes + 1));
  EXPECT_TRUE(absl::IsDataLoss(CheckFrameHeader(too_large)));
}

}  // namespace
}  // namespace winnow
