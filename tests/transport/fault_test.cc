#include "tests/transport/links.h"
#include "transport/wire/wire_check.h"

namespace winnow {
namespace {

class FaultTest : public ::testing::TestWithParam<TransportUnderTest> {};
INSTANTIATE_TEST_SUITE_P(All, FaultTest, ::testing::ValuesIn(KindsUnderTest()), KindName);

// Sends five frames of which the third is bent by `fault`: the two before it arrive, nothing after it does, and the
// channel says why.
void ExpectDataLoss(const TransportUnderTest& kind, size_t size, const LinkFaults& fault) {
  int posted = 0;
  Link link(kind, size_t{16} << 20, [&](wire::FrameHeader& header, std::span<std::byte> payload) {
    return ++posted == 3 ? fault(header, payload) : PostFault::kNone;
  });
  // A second channel to a third transport, which must not care.
  End other(kind, {.incarnation = 0xc});
  const std::unique_ptr<Channel> to_other = link.b.transport->NewChannel().value();
  Open(*other.channel, *to_other);

  for (uint32_t i = 0; i < 5; ++i) ASSERT_EQ(PostBytes(*link.a.channel, size, i), absl::OkStatus());
  ASSERT_TRUE(link.PumpUntil([&] { return !link.b.channel->failed().ok(); }));
  for (int i = 0; i < 1000; ++i) {
    link.a.transport->Progress();
    link.b.transport->Progress();
  }
  EXPECT_TRUE(absl::IsDataLoss(link.b.channel->failed())) << link.b.channel->failed();
  EXPECT_TRUE(absl::IsDataLoss(link.b.channel->Allocate(1).status()));
  EXPECT_EQ(link.b.transport->counters().bad_frames, 1u);
  ASSERT_EQ(link.b.frames.size(), 2u);
  EXPECT_TRUE(HoldsBytes(link.b.frames[0], size, 0));
  EXPECT_TRUE(HoldsBytes(link.b.frames[1], size, 1));

  link.b.frames.clear();
  ASSERT_EQ(PostBytes(*other.channel, size, 50), absl::OkStatus());
  ASSERT_TRUE(PumpUntil({other.transport.get(), link.b.transport.get()}, [&] { return link.b.frames.size() == 1; }));
  EXPECT_TRUE(HoldsBytes(link.b.frames[0], size, 50));
}

TEST_P(FaultTest, ChangedPayloadByteIsFound) {
  for (const size_t size : {size_t{1}, size_t{777}, size_t{100'000}, wire::kMaxPayloadBytes}) {
    ExpectDataLoss(GetParam(), size, [&](wire::FrameHeader&, std::span<std::byte> payload) {
      payload[size / 2] ^= std::byte{0x10};
      return PostFault::kNone;
    });
  }
}

TEST_P(FaultTest, LostFrameIsFound) {
  ExpectDataLoss(GetParam(), 1000, [](wire::FrameHeader&, std::span<std::byte>) { return PostFault::kDrop; });
}

TEST_P(FaultTest, RepeatedFrameNumberIsFound) {
  ExpectDataLoss(GetParam(), 1000, [](wire::FrameHeader& header, std::span<std::byte> payload) {
    --header.frame_number;
    SealFrame(header, payload);
    return PostFault::kNone;
  });
}

TEST_P(FaultTest, ChangedHeaderIsFound) {
  ExpectDataLoss(GetParam(), 1000, [](wire::FrameHeader& header, std::span<std::byte>) {
    header.apply_position ^= 1;
    return PostFault::kNone;
  });
}

TEST_P(FaultTest, HeaderThatNamesMoreThanArrivesIsFound) {
  ExpectDataLoss(GetParam(), 1000, [](wire::FrameHeader& header, std::span<std::byte> payload) {
    const std::vector<std::byte> longer(payload.size() + 64);
    SealFrame(header, longer);
    return PostFault::kNone;
  });
}

TEST_P(FaultTest, FalseCreditIsFound) {
  ExpectDataLoss(GetParam(), 0, [](wire::FrameHeader& header, std::span<std::byte> payload) {
    header.type = wire::FrameType::kCredit;
    header.frame_number = 1;
    header.plan = 0;
    header.sequence_id = 1'000'000;  // more frames than were ever sent
    SealFrame(header, payload);
    return PostFault::kNone;
  });
}

// A well-formed frame that is meant for somebody else is dropped and counted; only its absence is an error.
TEST_P(FaultTest, StrayFramesAreDroppedAndCounted) {
  const std::vector<LinkFaults> strays = {
      [](wire::FrameHeader& header, std::span<std::byte> payload) {
        header.channel += 1000;
        SealFrame(header, payload);
        return PostFault::kNone;
      },
      [](wire::FrameHeader& header, std::span<std::byte> payload) {
        header.source_incarnation += 1;
        SealFrame(header, payload);
        return PostFault::kNone;
      },
  };
  for (const LinkFaults& stray : strays) {
    Link link(GetParam(), size_t{16} << 20, stray);
    ASSERT_EQ(PostBytes(*link.a.channel, 10, 0), absl::OkStatus());
    ASSERT_TRUE(link.PumpUntil([&] { return link.b.transport->counters().stray_frames == 1; }));
    EXPECT_EQ(link.b.channel->failed(), absl::OkStatus());
    EXPECT_TRUE(link.b.frames.empty());
  }
}

TEST_P(FaultTest, PostThatFailsFailsTheChannel) {
  Link link(GetParam(), size_t{16} << 20, [](wire::FrameHeader&, std::span<std::byte>) { return PostFault::kFail; });
  EXPECT_TRUE(absl::IsUnavailable(PostBytes(*link.a.channel, 10, 0)));
  EXPECT_TRUE(absl::IsUnavailable(link.a.channel->failed()));
  EXPECT_TRUE(absl::IsUnavailable(link.a.channel->Allocate(10).status()));
  EXPECT_TRUE(absl::IsUnavailable(PostBytes(*link.a.channel, 10, 1)));
}

}  // namespace
}  // namespace winnow
