#include <gmock/gmock.h>

#include "tests/transport/links.h"
#include "transport/block_pool.h"
#include "transport/path_choice.h"
#include "transport/shm/shared_memory_path.h"
#include "transport/wire/crc32c.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

constexpr size_t kWindow = size_t{1} << 20;

PayloadPathKind Shared(std::string name) {
  return {.name = std::move(name),
          .make = [](size_t window_bytes) { return NewSharedMemoryPath({.window_bytes = window_bytes}); }};
}
PayloadPathKind Broken(std::string name) {
  return {.name = std::move(name), .make = [](size_t) -> absl::StatusOr<std::unique_ptr<PayloadPath>> {
            return absl::UnavailableError("no such library");
          }};
}

// As that of a rank whose GPU reads what the peer writes.
TransportUnderTest Pinned(DataPlaneMode mode) {
  const auto pin = [](void*, size_t) -> absl::StatusOr<std::shared_ptr<void>> { return std::make_shared<int>(); };
  return {.name = "Pinned",
          .ucx_tls = "posix,self",
          .path_name = "pinned",
          .path =
              [pin](uint64_t) {
                return PayloadPathKind{.name = "pinned", .make = [pin](size_t window_bytes) {
                                         return NewSharedMemoryPath({.window_bytes = window_bytes, .pin = pin});
                                       }};
              },
          .mode = mode};
}
// Its checksum is the payload's, or not.
absl::Status PostFrame(Channel& channel, wire::FrameType type, wire::Phase phase, bool right) {
  constexpr size_t kSize = 70'000;
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, channel.Allocate(kSize));
  const std::vector<std::byte> bytes = SomeBytes(kSize, 1);
  std::memcpy(buffer.payload().data(), bytes.data(), kSize);
  buffer.set_checksum(Crc32c(bytes) ^ (right ? 0 : 1));
  wire::FrameHeader header = SomeHeader(1);
  header.type = type;
  header.phase = phase;
  return channel.Post(header, std::move(buffer));
}

TEST(DeferredPayloadChecksTest, WhoAsksForThemChecksPinnedPayloadsOfStepsHimself) {
  for (const DataPlaneMode mode : {DataPlaneMode::kPlain, DataPlaneMode::kAuto}) {
    Link link(Pinned(mode));
    link.b.transport->DeferPayloadChecks(wire::FrameType::kDelta);
    for (const bool right : {true, false}) {
      ASSERT_EQ(PostFrame(*link.a.channel, wire::FrameType::kDelta, wire::Phase::kRefine, right), absl::OkStatus());
    }
    ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == 2; }));
    EXPECT_FALSE(link.b.frames[0].payload_is_checked() || link.b.frames[1].payload_is_checked());
    EXPECT_EQ(link.b.transport->CheckPayload(link.b.frames[0]), absl::OkStatus());
    EXPECT_TRUE(absl::IsDataLoss(link.b.transport->CheckPayload(link.b.frames[1])));
    EXPECT_EQ(link.b.transport->counters().bad_frames, 1u);
    EXPECT_EQ(link.b.channel->failed(), absl::OkStatus()) << "closing it is left to whoever checks";
  }
}

TEST(DeferredPayloadChecksTest, AllOthersAreCheckedBeforeTheyAreDelivered) {
  const auto expect_checked = [](const TransportUnderTest& kind, wire::FrameType type, wire::Phase phase) {
    Link link(kind);
    link.b.transport->DeferPayloadChecks(wire::FrameType::kDelta);
    for (const bool right : {true, false}) {
      ASSERT_EQ(PostFrame(*link.a.channel, type, phase, right), absl::OkStatus());
    }
    ASSERT_TRUE(link.PumpUntil([&] { return !link.b.channel->failed().ok(); }));
    EXPECT_TRUE(absl::IsDataLoss(link.b.channel->failed()));
    ASSERT_EQ(link.b.frames.size(), 1u);
    EXPECT_TRUE(link.b.frames[0].payload_is_checked());
  };
  expect_checked(Pinned(DataPlaneMode::kPlain), wire::FrameType::kLayer, wire::Phase::kRefine);
  expect_checked(Pinned(DataPlaneMode::kPlain), wire::FrameType::kDelta, wire::Phase::kPrefetch);
  expect_checked(kUcxTcp, wire::FrameType::kDelta, wire::Phase::kRefine);
}

TEST(DeferredPayloadChecksTest, ATagThatCoversThePayloadIsCheckedAtOnce) {
  for (const DataPlaneMode mode : {DataPlaneMode::kAuthenticated, DataPlaneMode::kEncrypted}) {
    Link link(Pinned(mode));
    link.b.transport->DeferPayloadChecks(wire::FrameType::kDelta);
    ASSERT_EQ(PostFrame(*link.a.channel, wire::FrameType::kDelta, wire::Phase::kRefine, true), absl::OkStatus());
    ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == 1; }));
    EXPECT_TRUE(link.b.frames[0].payload_is_checked());
  }
}

TEST(PathChoiceTest, TakesTheFirstThatBothHave) {
  const std::vector<PayloadPathKind> left = {Shared("one"), Shared("two"), Shared("three")};
  const std::vector<PayloadPathKind> right = {Shared("three"), Shared("two")};
  PathChoice a(left, kWindow), b(right, kWindow);
  a.Connect(b.Offers());
  EXPECT_EQ(a.name(), "two");
  EXPECT_NE(a.path(), nullptr);
  // What is offered after that is the one alone, so that the peer takes it too.
  b.Connect(a.Offers());
  EXPECT_EQ(b.name(), "two");
  EXPECT_EQ(b.why_none(), absl::OkStatus());
}

TEST(PathChoiceTest, SaysWhyThereIsNone) {
  const std::vector<PayloadPathKind> left = {Broken("one")}, right = {Shared("one")}, none;
  PathChoice a(left, kWindow), b(right, kWindow), c(none, kWindow);
  EXPECT_EQ(a.Offers(), "");
  b.Connect(a.Offers());
  EXPECT_EQ(b.path(), nullptr);
  EXPECT_EQ(b.name(), "");
  EXPECT_THAT(std::string(b.why_none().message()), HasSubstr("the peer offers none"));
  PathChoice d(right, kWindow);
  a.Connect(d.Offers());
  EXPECT_THAT(std::string(a.why_none().message()), HasSubstr("one: no such library"));
  c.Connect(PathChoice(right, kWindow).Offers());
  EXPECT_EQ(c.path(), nullptr);
  // Who connects second hears what the first one said.
  PathChoice e(right, kWindow);
  e.Connect(a.Offers());
  EXPECT_THAT(std::string(e.why_none().message()), HasSubstr("the peer says: one: no such library"));
}

TEST(PathChoiceTest, FramesGoWithoutAPath) {
  std::vector<std::string> told;
  TransportOptions options{.incarnation = 2, .window_bytes = kWindow, .ucx_tls = "tcp,self"};
  options.payload_paths = {Broken("p2p")};
  options.on_payload_path = [&](std::string_view name, const absl::Status& why) {
    told.push_back(absl::StrCat(AbslSv(name), "|", why.message()));
  };
  End a(kUcxTcp, {.incarnation = 1});
  const auto b = NewUcxTransport(options).value();
  const auto channel = b->NewChannel().value();
  size_t arrived = 0;
  b->SetHandler([&](Channel&, ReceivedFrame frame) { arrived += HoldsBytes(frame, 70'000, 3); });
  ASSERT_EQ(channel->Connect(a.channel->LocalAddress()), absl::OkStatus());
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0], HasSubstr("|p2p: "));
  EXPECT_EQ(channel->payload_path(), "");
  ASSERT_EQ(a.channel->Connect(channel->LocalAddress()), absl::OkStatus());
  ASSERT_EQ(PostBytes(*a.channel, 70'000, 3), absl::OkStatus());
  EXPECT_TRUE(PumpUntil({a.transport.get(), b.get()}, [&] { return arrived == 1; }));
}

std::unique_ptr<PayloadPath> NewPath() {
  return NewSharedMemoryPath({.window_bytes = kWindow}).value();
}

TEST(SharedMemoryPathTest, RefusesWhatItCannotReach) {
  const auto a = NewPath();
  std::string elsewhere = NewPath()->LocalAddress();
  elsewhere[0] = elsewhere[0] == '0' ? '1' : '0';  // of another boot
  EXPECT_THAT(std::string(a->Connect(elsewhere).message()), HasSubstr("another host"));
  EXPECT_TRUE(absl::IsFailedPrecondition(a->Connect(elsewhere)));
  // The file that was named is gone, or another one by now.
  const std::string gone = NewPath()->LocalAddress();
  EXPECT_TRUE(absl::IsFailedPrecondition(a->Connect(gone)));
  const auto next = NewPath();
  EXPECT_TRUE(absl::IsFailedPrecondition(a->Connect(gone)));
  EXPECT_TRUE(absl::IsInvalidArgument(a->Connect("")));
  EXPECT_FALSE(a->IsUp().value());
  EXPECT_EQ(a->Connect(next->LocalAddress()), absl::OkStatus());
  EXPECT_TRUE(next->IsUp().value());
}

TEST(SharedMemoryPathTest, FindsReferencesThatCannotBe) {
  const auto a = NewPath(), b = NewPath();
  ASSERT_EQ(b->Connect(a->LocalAddress()), absl::OkStatus());
  const auto pool = std::make_shared<BlockPool>();
  const auto expect = [&](uint64_t offset, uint64_t bytes) {
    const BlockPtr block = pool->Take(0);
    block->reference = {.offset = offset, .bytes = bytes};
    absl::Status status = b->Expect(*block);
    block->memory.reset();
    return status;
  };
  EXPECT_EQ(expect(4096, 5000), absl::OkStatus());
  EXPECT_TRUE(absl::IsDataLoss(expect(4097, 64)));
  EXPECT_TRUE(absl::IsDataLoss(expect(0, wire::kMaxPayloadBytes + 1)));
  EXPECT_TRUE(absl::IsDataLoss(expect(2 * kWindow - 4096, 4097)));
  EXPECT_TRUE(absl::IsDataLoss(expect(2 * kWindow, 1)));
  EXPECT_TRUE(absl::IsDataLoss(expect(UINT64_MAX - 4095, 8192)));
}

TEST(SharedMemoryPathTest, FindsMemoryThatIsGivenBackTwice) {
  const auto a = NewPath(), b = NewPath();
  ASSERT_EQ(b->Connect(a->LocalAddress()), absl::OkStatus());
  std::byte* const payload = a->Allocate(10'000);
  const PayloadRef reference = a->Send(payload, 10'000).value();
  const auto pool = std::make_shared<BlockPool>();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(a->Progress(), absl::OkStatus()) << i;
    const BlockPtr block = pool->Take(0);
    block->reference = reference;
    ASSERT_EQ(b->Expect(*block), absl::OkStatus());
  }
  EXPECT_TRUE(absl::IsDataLoss(a->Progress()));
}

}  // namespace
}  // namespace winnow
