#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "tests/transport/links.h"

namespace winnow {
namespace {

using std::chrono::microseconds;

class ContractTest : public ::testing::TestWithParam<TransportUnderTest> {};
INSTANTIATE_TEST_SUITE_P(All, ContractTest, ::testing::ValuesIn(KindsUnderTest()), KindName);

TEST_P(ContractTest, FrameArrivesWithItsHeaderAndTheFieldsOfTheTransport) {
  Link link(GetParam());
  ASSERT_EQ(PostBytes(*link.a.channel, 1000, 1), absl::OkStatus());
  ASSERT_EQ(PostBytes(*link.a.channel, 3, 2), absl::OkStatus());
  ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == 2; }));

  const wire::FrameHeader sent = SomeHeader(2);
  const wire::FrameHeader& got = link.b.frames[1].header();
  EXPECT_EQ(link.b.last_from, link.b.channel.get());
  EXPECT_EQ(got.magic, wire::kMagic);
  EXPECT_EQ(got.version, wire::kVersion);
  EXPECT_EQ(got.type, sent.type);
  EXPECT_EQ(got.phase, sent.phase);
  EXPECT_EQ(got.frame_number, 2u);
  EXPECT_EQ(got.source_incarnation, 0xau);
  EXPECT_EQ(got.channel, link.b.channel->id());
  EXPECT_EQ(got.flags, sent.flags);
  EXPECT_EQ(got.plan, sent.plan);
  EXPECT_EQ(got.sequence_id, sent.sequence_id);
  EXPECT_EQ(got.attach_epoch, sent.attach_epoch);
  EXPECT_EQ(got.apply_position, sent.apply_position);
  EXPECT_EQ(got.layer_first, sent.layer_first);
  EXPECT_EQ(got.prediction_layer, sent.prediction_layer);
  EXPECT_EQ(got.row_count, 2u);
  EXPECT_EQ(got.payload_bytes, 3u);
}

TEST_P(ContractTest, EverySizeArrivesWholeAndAligned) {
  const std::vector<size_t> sizes = {0,     1,     7,     63,    64,    65,     127,           255,    256,
                                     257,   1023,  4095,  4097,  8000,  8191,   8192,          8256,   8257,
                                     16383, 65535, 65536, 65537, 99991, 262145, (1 << 20) - 1, 1 << 20};
  Link link(GetParam());
  uint64_t total = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_EQ(PostBytes(*link.a.channel, sizes[i], static_cast<uint32_t>(i)), absl::OkStatus()) << sizes[i];
    total += sizes[i];
  }
  ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == sizes.size(); }));
  // All are looked at after all have arrived, so that a frame that writes into another one shows.
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_TRUE(HoldsBytes(link.b.frames[i], sizes[i], static_cast<uint32_t>(i))) << sizes[i];
    EXPECT_EQ(reinterpret_cast<uintptr_t>(link.b.frames[i].payload().data()) % 64, 0u) << sizes[i];
    EXPECT_EQ(link.b.frames[i].header().frame_number, i + 1);
  }
  EXPECT_EQ(link.a.channel->sent_bytes(), total);
  EXPECT_EQ(link.b.channel->received_bytes(), total);
  EXPECT_EQ(link.a.transport->counters().frames_sent, sizes.size());
  EXPECT_EQ(link.b.transport->counters().frames_delivered, sizes.size());
  EXPECT_EQ(link.b.transport->counters().bad_frames, 0u);
}

TEST_P(ContractTest, BuffersAreAlignedAndOfTheSizeAskedFor) {
  Link link(GetParam());
  for (const size_t size : {size_t{0}, size_t{1}, size_t{64}, size_t{12345}, wire::kMaxPayloadBytes}) {
    auto buffer = link.a.channel->Allocate(size);
    ASSERT_EQ(buffer.status(), absl::OkStatus());
    EXPECT_EQ(buffer->payload().size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->payload().data()) % 64, 0u);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(link.a.channel->Allocate(wire::kMaxPayloadBytes + 1).status()));
}

TEST_P(ContractTest, LargeAndSmallFramesKeepTheOrderOfPost) {
  Link link(GetParam(), size_t{8} << 20);
  std::mt19937 random(7);
  constexpr uint32_t kFrames = 400;
  std::vector<size_t> sizes;
  for (uint32_t i = 0; i < kFrames; ++i) sizes.push_back(i % 5 == 0 ? random() % (1 << 20) : random() % 300);
  uint32_t posted = 0, received = 0;
  const auto step = [&] {
    while (posted < kFrames) {
      const absl::Status status = PostBytes(*link.a.channel, sizes[posted], posted);
      if (absl::IsResourceExhausted(status)) break;
      EXPECT_EQ(status, absl::OkStatus());
      ++posted;
    }
    for (const ReceivedFrame& frame : link.b.frames) {
      EXPECT_TRUE(HoldsBytes(frame, sizes[received], received)) << "frame " << received;
      ++received;
    }
    link.b.frames.clear();
    return received == kFrames;
  };
  EXPECT_TRUE(link.PumpUntil(step));
}

// Whoever waits for the peer without making progress waits for sending() first.
TEST_P(ContractTest, FramesThatHaveLeftArriveWithoutTheirSender) {
  Link link(GetParam());
  constexpr size_t kFrames = 9;
  for (uint32_t i = 0; i < kFrames; ++i) {
    ASSERT_EQ(PostBytes(*link.a.channel, i % 2 == 0 ? 8 : 1 << 20, i), absl::OkStatus());
  }
  ASSERT_TRUE(link.PumpUntil([&] { return !link.a.channel->sending(); }));
  for (int i = 0; i < 100'000 && link.b.frames.size() < kFrames; ++i) link.b.transport->Progress();
  ASSERT_EQ(link.b.frames.size(), kFrames);
  EXPECT_TRUE(HoldsBytes(link.b.frames.back(), 8, kFrames - 1));
}

TEST_P(ContractTest, ConnectRefusesWhatNoSuchTransportMade) {
  End a(GetParam(), {}), b(GetParam(), {});
  EXPECT_TRUE(absl::IsInvalidArgument(a.channel->Connect("")));
  EXPECT_TRUE(absl::IsInvalidArgument(a.channel->Connect("not an address, but a long enough string of bytes")));
  std::string bent = b.channel->LocalAddress();
  bent.back() = static_cast<char>(bent.back() ^ 1);
  EXPECT_TRUE(absl::IsInvalidArgument(a.channel->Connect(bent)));
  const TransportUnderTest& other = GetParam().ucx_tls.empty() ? kUcxTcp : kInproc;
  EXPECT_TRUE(absl::IsInvalidArgument(a.channel->Connect(End(other, {}).channel->LocalAddress())));
  // None of this has spoilt the channel.
  EXPECT_EQ(a.channel->Connect(b.channel->LocalAddress()), absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(a.channel->Connect(b.channel->LocalAddress())));
}

TEST_P(ContractTest, NothingCanBeAllocatedBeforeConnect) {
  End a(GetParam(), {});
  EXPECT_TRUE(absl::IsFailedPrecondition(a.channel->Allocate(8).status()));
  EXPECT_EQ(a.channel->failed(), absl::OkStatus());
}

TEST_P(ContractTest, FramesThatComeBeforeConnectAreDeliveredAfterIt) {
  End a(GetParam(), {.incarnation = 1}), b(GetParam(), {.incarnation = 2});
  const LinkProtection decided = Answer(*a.channel, *b.channel);
  ASSERT_EQ(PostBytes(*a.channel, 100, 1), absl::OkStatus());
  for (int i = 0; i < 1000; ++i) {
    a.transport->Progress();
    b.transport->Progress();
  }
  EXPECT_TRUE(b.frames.empty());
  Complete(*b.channel, *a.channel, decided);
  ASSERT_TRUE(PumpUntil({a.transport.get(), b.transport.get()}, [&] { return b.frames.size() == 1; }));
  EXPECT_TRUE(HoldsBytes(b.frames[0], 100, 1));
}

TEST_P(ContractTest, OnlyAllocatedBuffersAndKnownTypesCanBePosted) {
  Link link(GetParam());
  EXPECT_TRUE(absl::IsInvalidArgument(link.a.channel->Post(SomeHeader(), SendBuffer())));
  wire::FrameHeader header = SomeHeader();
  for (const int type : {0, 15, 64, 255}) {  // 64: credit belongs to the transport
    header.type = static_cast<wire::FrameType>(type);
    EXPECT_TRUE(absl::IsInvalidArgument(link.a.channel->Post(header, link.a.channel->Allocate(8).value()))) << type;
  }
  EXPECT_EQ(link.a.channel->failed(), absl::OkStatus());
}

TEST_P(ContractTest, WindowBoundsWhatIsUnderWayAndComesBackWithConsumption) {
  constexpr size_t kWindow = size_t{4} << 20;
  Link link(GetParam(), kWindow);
  for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(PostBytes(*link.a.channel, 1 << 20, i), absl::OkStatus());
  ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == 4; }));
  // Delivered, but not consumed: the window stays shut however long one waits.
  for (int i = 0; i < 2000; ++i) {
    link.a.transport->Progress();
    link.b.transport->Progress();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(link.a.channel->Allocate(1).status()));

  // Consumed in any order.
  link.b.frames.erase(link.b.frames.begin() + 2);
  ASSERT_TRUE(link.PumpUntil([&] { return link.a.channel->Allocate(1 << 20).ok(); }));
  ASSERT_EQ(PostBytes(*link.a.channel, 1 << 20, 4), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(link.a.channel->Allocate(1).status()));
  ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == 4; }));
  EXPECT_TRUE(HoldsBytes(link.b.frames[0], 1 << 20, 0));
  EXPECT_TRUE(HoldsBytes(link.b.frames[1], 1 << 20, 1));
  EXPECT_TRUE(HoldsBytes(link.b.frames[2], 1 << 20, 3));
  EXPECT_TRUE(HoldsBytes(link.b.frames[3], 1 << 20, 4));
}

TEST_P(ContractTest, SpareWindowIsTheFirstHalf) {
  Link link(GetParam(), size_t{4} << 20);
  ASSERT_EQ(link.a.channel->AllocateSpare(1 << 20).status(), absl::OkStatus());
  ASSERT_EQ(PostBytes(*link.a.channel, (1 << 20) - 64, 0), absl::OkStatus());
  {
    const auto spare = link.a.channel->AllocateSpare(1 << 20);
    ASSERT_EQ(spare.status(), absl::OkStatus());
    EXPECT_TRUE(absl::IsResourceExhausted(link.a.channel->AllocateSpare(65).status()));
    EXPECT_EQ(link.a.channel->Allocate(1 << 20).status(), absl::OkStatus()) << "what is waited for still fits";
  }
  ASSERT_EQ(PostBytes(*link.a.channel, 1 << 20, 1), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(link.a.channel->AllocateSpare(65).status()));
  ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == 2; }));
  link.b.frames.clear();
  EXPECT_TRUE(link.PumpUntil([&] { return link.a.channel->AllocateSpare(1 << 20).ok(); }));
}

TEST_P(ContractTest, BulkTakesHalfOfTheWindowAndItsRefusalIsWaitedFor) {
  Link link(GetParam(), size_t{4} << 20);
  for (uint32_t i = 0; i < 2; ++i) ASSERT_EQ(PostBytes(*link.a.channel, 1 << 20, i), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(link.a.channel->AllocateBulk(64).status()));
  ASSERT_EQ(PostBytes(*link.a.channel, 1 << 20, 2), absl::OkStatus()) << "what is waited for still fits";
  ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == 3; }));
  // The refusal was before an Allocate that passed; the wait must end all the same, long before its time.
  std::atomic<bool> stop{false};
  std::thread consumer([&] {
    link.b.frames.clear();
    while (!stop) link.b.transport->Wait(microseconds(1000), microseconds(0));
  });
  const auto start = std::chrono::steady_clock::now();
  while (!link.a.channel->AllocateBulk(1 << 20).ok() &&
         std::chrono::steady_clock::now() - start < std::chrono::minutes(1)) {
    link.a.transport->Wait(std::chrono::minutes(1), microseconds(0));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(50));
  stop = true;
  consumer.join();
}

TEST_P(ContractTest, ABulkFrameAboveHalfOfTheWindowPassesAlone) {
  Link link(GetParam(), 1 << 20);
  EXPECT_EQ(link.a.channel->AllocateBulk(1 << 20).status(), absl::OkStatus());
  ASSERT_EQ(PostBytes(*link.a.channel, 100, 0), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(link.a.channel->AllocateBulk(1 << 20).status()));
}

TEST_P(ContractTest, EvenASmallConsumptionOpensTheWindowInTheEnd) {
  Link link(GetParam(), 1 << 20);
  ASSERT_EQ(PostBytes(*link.a.channel, 100, 0), absl::OkStatus());
  ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == 1; }));
  EXPECT_TRUE(absl::IsResourceExhausted(link.a.channel->Allocate(1 << 20).status()));
  link.b.frames.clear();
  EXPECT_TRUE(link.PumpUntil([&] { return link.a.channel->Allocate(1 << 20).ok(); }));
}

TEST_P(ContractTest, BuffersThatAreNotPostedGiveTheirWindowBack) {
  Link link(GetParam(), 1 << 20);
  for (int i = 0; i < 100; ++i) {
    auto buffer = link.a.channel->Allocate(1 << 20);
    ASSERT_EQ(buffer.status(), absl::OkStatus()) << i;
    EXPECT_TRUE(absl::IsResourceExhausted(link.a.channel->Allocate(1).status()));
  }
  EXPECT_EQ(link.a.channel->sent_bytes(), 0u);
}

TEST_P(ContractTest, FramesWithoutPayloadAreBoundedToo) {
  Link link(GetParam());
  uint32_t posted = 0;
  absl::Status status;
  while ((status = PostBytes(*link.a.channel, 0, 0)).ok() && posted < 1'000'000) ++posted;
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_GE(posted, 10'000u);
  ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == posted; }));
  link.b.frames.clear();
  EXPECT_TRUE(link.PumpUntil([&] { return link.a.channel->Allocate(0).ok(); }));
}

TEST_P(ContractTest, KeptFramesOutliveLaterTrafficAndTheirChannel) {
  auto link = std::make_unique<Link>(GetParam());
  ASSERT_EQ(PostBytes(*link->a.channel, 70'000, 1), absl::OkStatus());
  ASSERT_EQ(PostBytes(*link->a.channel, 70, 2), absl::OkStatus());
  ASSERT_TRUE(link->PumpUntil([&] { return link->b.frames.size() == 2; }));
  std::vector<ReceivedFrame> kept = std::move(link->b.frames);
  link->b.frames.clear();
  uint32_t received = 0;
  for (uint32_t i = 0; i < 100; ++i) {
    ASSERT_EQ(PostBytes(*link->a.channel, 70'000, 100 + i), absl::OkStatus());
    ASSERT_TRUE(link->PumpUntil([&] {
      received += link->b.frames.size();
      link->b.frames.clear();
      return received == i + 1;
    }));
  }
  EXPECT_TRUE(HoldsBytes(kept[0], 70'000, 1));
  link.reset();
  EXPECT_TRUE(HoldsBytes(kept[0], 70'000, 1));
  EXPECT_TRUE(HoldsBytes(kept[1], 70, 2));
}

TEST_P(ContractTest, ChannelsOfOneTransportLeadToTheirOwnPeers) {
  End hub(GetParam(), {.incarnation = 1}), b(GetParam(), {.incarnation = 2}), c(GetParam(), {.incarnation = 3});
  const std::unique_ptr<Channel> to_c = hub.transport->NewChannel().value();
  EXPECT_NE(hub.channel->id(), to_c->id());
  const LinkProtection with_b = Answer(*hub.channel, *b.channel), with_c = Answer(*to_c, *c.channel);
  Complete(*b.channel, *hub.channel, with_b);
  Complete(*c.channel, *to_c, with_c);
  std::vector<std::pair<Channel*, uint32_t>> at_hub;
  hub.transport->SetHandler(
      [&](Channel& from, ReceivedFrame frame) { at_hub.emplace_back(&from, frame.header().row_count); });
  for (uint32_t i = 0; i < 20; ++i) {
    ASSERT_EQ(PostBytes(*hub.channel, 500, 2 * i), absl::OkStatus());
    ASSERT_EQ(PostBytes(*to_c, 20'000, 2 * i + 1), absl::OkStatus());
  }
  ASSERT_EQ(PostBytes(*b.channel, 5, 1000), absl::OkStatus());
  ASSERT_EQ(PostBytes(*c.channel, 5, 2000), absl::OkStatus());
  ASSERT_TRUE(PumpUntil({hub.transport.get(), b.transport.get(), c.transport.get()},
                        [&] { return b.frames.size() == 20 && c.frames.size() == 20 && at_hub.size() == 2; }));
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(HoldsBytes(b.frames[i], 500, 2 * i));
    EXPECT_TRUE(HoldsBytes(c.frames[i], 20'000, 2 * i + 1));
  }
  using P = std::pair<Channel*, uint32_t>;
  EXPECT_THAT(at_hub, ::testing::UnorderedElementsAre(P{hub.channel.get(), 1000}, P{to_c.get(), 2000}));
}

TEST_P(ContractTest, TwoChannelsBetweenTheSameTransportsDoNotMix) {
  End a(GetParam(), {.incarnation = 1}), b(GetParam(), {.incarnation = 2});
  const std::unique_ptr<Channel> a2 = a.transport->NewChannel().value(), b2 = b.transport->NewChannel().value();
  // Connected in opposite orders on the two sides.
  const LinkProtection first = Answer(*a.channel, *b.channel), second = Answer(*a2, *b2);
  Complete(*b2, *a2, second);
  Complete(*b.channel, *a.channel, first);
  std::vector<std::pair<Channel*, uint32_t>> at_b;
  b.transport->SetHandler(
      [&](Channel& from, ReceivedFrame frame) { at_b.emplace_back(&from, frame.header().row_count); });
  ASSERT_EQ(PostBytes(*a.channel, 10, 1), absl::OkStatus());
  ASSERT_EQ(PostBytes(*a2, 10, 2), absl::OkStatus());
  ASSERT_TRUE(PumpUntil({a.transport.get(), b.transport.get()}, [&] { return at_b.size() == 2; }));
  using P = std::pair<Channel*, uint32_t>;
  EXPECT_THAT(at_b, ::testing::UnorderedElementsAre(P{b.channel.get(), 1}, P{b2.get(), 2}));

  // One channel goes; the other does not notice.
  a2->Close();
  b2->Close();
  ASSERT_EQ(PostBytes(*a.channel, 10, 3), absl::OkStatus());
  ASSERT_TRUE(PumpUntil({a.transport.get(), b.transport.get()}, [&] { return at_b.size() == 3; }));
  EXPECT_EQ(at_b[2], (P{b.channel.get(), 3}));
}

TEST_P(ContractTest, HandlerMayAnswerAtOnce) {
  Link link(GetParam());
  link.b.transport->SetHandler([&](Channel& channel, ReceivedFrame frame) {
    auto buffer = channel.Allocate(frame.payload().size()).value();
    std::memcpy(buffer.payload().data(), frame.payload().data(), frame.payload().size());
    EXPECT_EQ(channel.Post(frame.header(), std::move(buffer)), absl::OkStatus());
  });
  for (uint32_t i = 0; i < 50; ++i) ASSERT_EQ(PostBytes(*link.a.channel, 100 * i, i), absl::OkStatus());
  ASSERT_TRUE(link.PumpUntil([&] { return link.a.frames.size() == 50; }));
  for (uint32_t i = 0; i < 50; ++i) EXPECT_TRUE(HoldsBytes(link.a.frames[i], 100 * i, i));
}

TEST_P(ContractTest, HandlerMayDestroyTheChannel) {
  Link link(GetParam());
  int delivered = 0;
  link.b.transport->SetHandler([&](Channel&, ReceivedFrame) {
    ++delivered;
    link.b.channel.reset();
  });
  for (uint32_t i = 0; i < 5; ++i) ASSERT_EQ(PostBytes(*link.a.channel, 10, i), absl::OkStatus());
  ASSERT_TRUE(link.PumpUntil([&] { return delivered > 0; }));
  link.b.transport->Progress();
  EXPECT_EQ(delivered, 1);
}

// Every byte both ways at once, with a window that is much smaller than the traffic and frames freed out of order.
TEST_P(ContractTest, BothDirectionsAtOnceFromTwoThreads) {
  constexpr uint32_t kFrames = 600;
  Link link(GetParam(), size_t{2} << 20);
  std::atomic<int> ends_done{0};
  const auto run = [&](End& end, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<ReceivedFrame> kept;
    uint32_t received = 0, bad = 0, posted = 0;
    end.transport->SetHandler([&](Channel&, ReceivedFrame frame) {
      bad += !HoldsBytes(frame, frame.payload().size(), received);
      ++received;
      kept.push_back(std::move(frame));
    });
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    bool counted = false;
    while (ends_done < 2 && std::chrono::steady_clock::now() < deadline) {
      while (posted < kFrames) {
        const size_t size = posted % 4 == 0 ? random() % 200'000 : random() % 2000;
        const absl::Status status = PostBytes(*end.channel, size, posted);
        if (absl::IsResourceExhausted(status)) break;
        EXPECT_EQ(status, absl::OkStatus());
        ++posted;
      }
      while (kept.size() > 3) kept.erase(kept.begin() + random() % kept.size());
      if (received == kFrames) kept.clear();
      end.transport->Wait(microseconds(1000), microseconds(20));
      if (!counted && posted == kFrames && received == kFrames) {
        counted = true;
        ++ends_done;
      }
    }
    EXPECT_EQ(received, kFrames);
    EXPECT_EQ(posted, kFrames);
    EXPECT_EQ(bad, 0u);
    kept.clear();
  };
  std::thread other([&] { run(link.b, 2); });
  run(link.a, 1);
  other.join();
  EXPECT_EQ(link.a.channel->failed(), absl::OkStatus());
  EXPECT_EQ(link.b.channel->failed(), absl::OkStatus());
}

TEST_P(ContractTest, ClosedChannelRefusesEverythingAndDeliversNothing) {
  Link link(GetParam());
  ASSERT_EQ(PostBytes(*link.a.channel, 10, 0), absl::OkStatus());
  SendBuffer allocated = link.b.channel->Allocate(10).value();
  link.b.channel->Close();
  EXPECT_TRUE(absl::IsCancelled(link.b.channel->failed()));
  EXPECT_TRUE(absl::IsCancelled(link.b.channel->Allocate(10).status()));
  EXPECT_TRUE(absl::IsCancelled(link.b.channel->Post(SomeHeader(), std::move(allocated))));
  for (int i = 0; i < 1000; ++i) {
    link.a.transport->Progress();
    link.b.transport->Progress();
  }
  EXPECT_TRUE(link.b.frames.empty());
  link.b.channel->Close();  // again does nothing
}

TEST_P(ContractTest, CloseWithFramesUnderWayReturnsAtOnce) {
  Link link(GetParam(), size_t{32} << 20);
  // More than any queue between the ends holds, and the peer does not read.
  for (uint32_t i = 0; i < 24; ++i) ASSERT_EQ(PostBytes(*link.a.channel, 1 << 20, i), absl::OkStatus());
  for (int i = 0; i < 100; ++i) link.a.transport->Progress();
  link.a.channel->Close();
  link.a.channel.reset();
  link.b.channel.reset();
}

TEST_P(ContractTest, BuffersMayOutliveTheirChannel) {
  Link link(GetParam());
  SendBuffer buffer = link.a.channel->Allocate(1000).value();
  link.a.channel.reset();
  std::memset(buffer.payload().data(), 1, buffer.payload().size());
}

TEST_P(ContractTest, ChannelsComeAndGo) {
  End a(GetParam(), {.incarnation = 1}), b(GetParam(), {.incarnation = 2});
  for (uint32_t round = 0; round < 10; ++round) {
    const std::unique_ptr<Channel> at_a = a.transport->NewChannel().value(), at_b = b.transport->NewChannel().value();
    Open(*at_a, *at_b);
    ASSERT_EQ(PostBytes(*at_a, 5000, round), absl::OkStatus());
    ASSERT_TRUE(PumpUntil({a.transport.get(), b.transport.get()}, [&] { return b.frames.size() == 1; }));
    EXPECT_TRUE(HoldsBytes(b.frames[0], 5000, round));
    b.frames.clear();
  }
}

}  // namespace
}  // namespace winnow
