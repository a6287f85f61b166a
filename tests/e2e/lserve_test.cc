// A server whose query heads have lists of their own (the preset lserve, without streaming heads) answers the same
// however it is run.
#include <gtest/gtest.h>
#include <signal.h>

#include <future>

#include "tests/e2e/cluster.h"
#include "tests/e2e/golden.h"

namespace winnow::e2e {
namespace {

constexpr int kTokens = 60;

// The preset's sinks, window and budget here are about a third of the prompt.
Json Request() {
  return GreedyRequest(DemoCaseOfAtLeast(2000).prompt, kTokens);
}

std::unique_ptr<Cluster> StartCluster(std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--budget=256", "--max-context=8192"});
  return StartOrFail(std::move(flags));
}

class LServe : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ = StartCluster({"--selection=lserve,profile_use=none", "--inference-ranks=2"});
    if (cluster_ != nullptr) reference_ = Complete(cluster_->http(), Request());
  }
  static void TearDownTestSuite() { cluster_ = nullptr; }
  void SetUp() override {
    ASSERT_TRUE(reference_.ok()) << reference_.error;
    ASSERT_EQ(reference_.ids.size(), static_cast<size_t>(kTokens));
    ASSERT_GT(reference_.Stat("streamed_rows"), 0);
  }
  static void ExpectReference(const Completion& completion) {
    EXPECT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.ids, reference_.ids);
  }

  static std::unique_ptr<Cluster> cluster_;
  static Completion reference_;
};
std::unique_ptr<Cluster> LServe::cluster_;
Completion LServe::reference_;

TEST_F(LServe, AnswersTheSameAloneOrInABatch) {
  ExpectReference(Complete(cluster_->http(), Request()));
  std::vector<std::future<Completion>> same, others;
  for (int i = 0; i < 4; ++i) {
    same.push_back(std::async(std::launch::async, [] { return Complete(cluster_->http(), Request()); }));
  }
  Json temporal = GreedyRequest(DemoText(900, 5000), kTokens);
  temporal["winnow"] = {{"selection", "async-token"}};
  const std::vector<Json> different = {temporal,
                                       GreedyRequest(DemoText(100), kTokens)};  // the second is dense at first
  for (const Json& request : different) {
    others.push_back(std::async(std::launch::async, [&request] { return Complete(cluster_->http(), request); }));
  }
  for (std::future<Completion>& completion : same) ExpectReference(completion.get());
  for (std::future<Completion>& completion : others) {
    const Completion done = completion.get();
    EXPECT_TRUE(done.ok()) << done.error;
  }
}

TEST_F(LServe, AnswersTheSameInOneProcessWithAnotherPool) {
  const auto cluster = StartCluster({"--selection=lserve,profile_use=none", "--transport=inproc", "--pool-factor=7"});
  ASSERT_NE(cluster, nullptr);
  ExpectReference(Complete(cluster->http(), Request()));
}

TEST_F(LServe, MovesMoreRowsThanListsPerKvHead) {
  const auto cluster = StartCluster({"--selection=lserve,profile_use=none,list_per=kv-head"});
  ASSERT_NE(cluster, nullptr);
  const Completion shared = Complete(cluster->http(), Request());
  ASSERT_TRUE(shared.ok()) << shared.error;
  EXPECT_GT(reference_.Stat("streamed_rows"), shared.Stat("streamed_rows"));
  RecordProperty("streamed_rows", static_cast<int>(reference_.Stat("streamed_rows")));
  RecordProperty("streamed_rows_shared", static_cast<int>(shared.Stat("streamed_rows")));
}

TEST_F(LServe, AnswersTheSameAfterItsInferenceRankWasKilled) {
  const std::vector<pid_t> pids = cluster_->Pids("inference-rank");
  ASSERT_EQ(pids.size(), 2u);
  bool killed = false;
  const Completion disturbed = StreamCompletion(cluster_->http(), Request(), [&](size_t tokens) {
    for (int i = 0; i < 2 && tokens >= 10 && !killed; ++i) {
      const Metrics metrics = cluster_->MetricsOf("inference-" + std::to_string(i));
      if (metrics.Value("winnow_num_requests_running") >= 1) killed = kill(pids[i], SIGKILL) == 0;
    }
    return true;
  });
  ASSERT_TRUE(killed);
  ExpectReference(disturbed);
  EXPECT_GE(disturbed.Stat("reattach_count"), 1);
}

}  // namespace
}  // namespace winnow::e2e
