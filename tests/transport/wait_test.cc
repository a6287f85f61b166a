#include <sys/resource.h>

#include <thread>

#include "tests/transport/links.h"

namespace winnow {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;
constexpr microseconds kLong = seconds(60);  // a Wait that lasts this long has missed its event

class WaitTest : public ::testing::TestWithParam<TransportUnderTest> {};
INSTANTIATE_TEST_SUITE_P(All, WaitTest, ::testing::ValuesIn(KindsUnderTest()), KindName);

double ThreadCpuSeconds() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

TEST_P(WaitTest, EndsAfterTheTimeout) {
  Link link(GetParam());
  EXPECT_EQ(link.a.transport->Wait(microseconds(0), microseconds(0)), 0);
  EXPECT_EQ(link.a.transport->Wait(microseconds(300), microseconds(0)), 0);
  EXPECT_EQ(link.a.transport->Wait(microseconds(300), microseconds(1000)), 0);
}

TEST_P(WaitTest, WakeFromAnotherThreadEndsIt) {
  Link link(GetParam());
  for (const microseconds spin : {microseconds(0), kLong}) {
    const auto start = std::chrono::steady_clock::now();
    std::thread other([&] { link.a.transport->Wake(); });
    EXPECT_EQ(link.a.transport->Wait(kLong, spin), 0);
    other.join();
    EXPECT_LT(std::chrono::steady_clock::now() - start, kLong / 2);
  }
}

TEST_P(WaitTest, WakeBeforeWaitEndsTheNextOneOnly) {
  Link link(GetParam());
  link.a.transport->Wake();
  link.a.transport->Wake();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(link.a.transport->Wait(kLong, microseconds(0)), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kLong / 2);
  const auto second = std::chrono::steady_clock::now();
  link.a.transport->Wait(microseconds(20'000), microseconds(0));
  EXPECT_GE(std::chrono::steady_clock::now() - second, microseconds(20'000));
}

// The sleeping end is woken by the frame itself: with missed events this takes 0.1 s a frame, far beyond the test's
// time limit.
TEST_P(WaitTest, FramesWakeASleeper) {
  Link link(GetParam());
  constexpr uint32_t kRounds = 2000;
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  std::thread echo([&] {
    uint32_t echoed = 0;
    link.b.transport->SetHandler([&](Channel& channel, ReceivedFrame frame) {
      EXPECT_EQ(PostBytes(channel, 100, frame.header().row_count), absl::OkStatus());
      ++echoed;
    });
    while (echoed < kRounds && std::chrono::steady_clock::now() < deadline)
      link.b.transport->Wait(kLong, microseconds(0));
  });
  uint32_t rounds = 0;
  while (rounds < kRounds && std::chrono::steady_clock::now() < deadline) {
    EXPECT_EQ(PostBytes(*link.a.channel, 100, rounds), absl::OkStatus());
    const size_t before = link.a.frames.size();
    while (link.a.frames.size() == before && std::chrono::steady_clock::now() < deadline) {
      link.a.transport->Wait(kLong, microseconds(0));
    }
    ++rounds;
    link.a.frames.clear();
  }
  // The last answer may have been the echo's last act, so its bytes may still need our progress only.
  echo.join();
  EXPECT_EQ(rounds, kRounds);
  EXPECT_LT(std::chrono::steady_clock::now(), deadline);
}

TEST_P(WaitTest, ReturnedWindowWakesASenderThatWasRefused) {
  Link link(GetParam(), 1 << 20);
  ASSERT_EQ(PostBytes(*link.a.channel, 1 << 20, 0), absl::OkStatus());
  std::atomic<bool> stop{false};
  std::thread consumer([&] {
    while (!stop) {
      link.b.transport->Wait(microseconds(1000), microseconds(0));
      link.b.frames.clear();
    }
  });
  const auto start = std::chrono::steady_clock::now();
  while (!link.a.channel->Allocate(1 << 20).ok() && std::chrono::steady_clock::now() - start < kLong) {
    link.a.transport->Wait(kLong, microseconds(0));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, kLong / 2);
  stop = true;
  consumer.join();
}

TEST_P(WaitTest, AnIdleTransportUsesNoCpu) {
  Link link(GetParam());
  ASSERT_EQ(PostBytes(*link.a.channel, 100, 0), absl::OkStatus());
  ASSERT_TRUE(link.PumpUntil([&] { return link.b.frames.size() == 1; }));
  link.b.frames.clear();
  ASSERT_TRUE(link.PumpUntil([&, polls = 0]() mutable { return ++polls == 100; }));  // let the credit go home
  const double before = ThreadCpuSeconds();
  link.a.transport->Wait(microseconds(500'000), microseconds(0));
  EXPECT_LT(ThreadCpuSeconds() - before, 0.05);  // polling would use all of the 0.5 s
}

}  // namespace
}  // namespace winnow
