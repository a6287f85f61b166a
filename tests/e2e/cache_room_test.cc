// Which cache rank a sequence goes to, and how long its answer may be, where one cache rank is small and another large.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/generation_calls.h"
#include "tests/e2e/golden.h"

namespace winnow::e2e {
namespace {

using testing::HasSubstr;

// Of the demo model: 16 lists of rows of 256 bytes, and their keys once more.
constexpr int kPositionBytes = 16 * (256 + 128);
constexpr int kSmall = 1024, kLarge = 4096;  // positions that they hold

std::string MemoryFor(int positions) {
  return std::to_string(positions * kPositionBytes);
}

class CacheRoom : public testing::Test {
 protected:
  void SetUp() override {
    cluster_ = StartOrFail({"--cache-memory=" + MemoryFor(kSmall), "--max-context=16384", "--prefix-cache=false",
                            "--slow-start=0s", "--budget=256"});
    ASSERT_NE(cluster_, nullptr);
    large_ =
        std::make_unique<Process>(std::vector<std::string>{WinnowBinary(), "cache-rank", "--rank=cache-large",
                                                           "--router=" + cluster_->grpc_address(), "--grpc=127.0.0.1:0",
                                                           "--metrics=127.0.0.1:0", "--memory=" + MemoryFor(kLarge)},
                                  Process::Environment());
    ASSERT_TRUE(WaitUntil(std::chrono::milliseconds(20'000), [&] {
      return cluster_->MetricsOf("router-0").Value("winnow_router_ranks", {{"kind", "cache"}}) == 2;
    }));
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Process> large_;
};

TEST_F(CacheRoom, WhatOnlyTheLargeOneHoldsGoesThere) {
  for (int i = 0; i < 3; ++i) {
    const Completion completion = Complete(cluster_->http(), GreedyRequest(DemoText(kSmall, 100 * i), 4));
    EXPECT_TRUE(completion.ok()) << completion.error;
  }
  const Completion never = Complete(cluster_->http(), GreedyRequest(DemoText(300), kLarge - 299));
  EXPECT_EQ(never.status, 400);
  EXPECT_THAT(never.error, HasSubstr("Ask for fewer tokens (max_tokens)"));
}

TEST_F(CacheRoom, AnAnswerOfNoGivenLengthGetsAllThatItHolds) {
  GenerationClient client(*cluster_);
  v1::GenerateRequest request = SamplesOf("", DemoText(300), 1, 1);
  request.clear_max_tokens();
  const auto call = client.Generate(request);
  EXPECT_TRUE(call->ReadUntil(3)) << call->Finish().status.error_message();
}

}  // namespace
}  // namespace winnow::e2e
