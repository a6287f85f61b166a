// What a sequence says depends on its prompt, its parameters and its selection, and on nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>

#include "tests/e2e/cluster.h"
#include "tests/e2e/golden.h"

namespace winnow::e2e {
namespace {

constexpr int kBudget = 256;
constexpr int kTokens = 40;
constexpr std::array<const char*, 4> kPresets = {"winnow", "async-token", "depth", "fixed"};

// About eight times as long as what is attended.
const TokenIds& Prompt() {
  return DemoCaseOfAtLeast(2000).prompt;
}

Json RequestFor(const std::string& preset, const TokenIds& prompt = Prompt()) {
  Json request = GreedyRequest(prompt, kTokens);
  request["winnow"] = {{"selection", preset}};
  return request;
}

std::unique_ptr<Cluster> StartCluster(std::vector<std::string> flags, Process::Environment environment = {}) {
  flags.insert(flags.end(), {"--budget=" + std::to_string(kBudget), "--max-context=8192"});
  return StartOrFail(std::move(flags), std::move(environment));
}

// Ids of the prompt's answer by preset, from a cluster of one process per role over UCX's own choice of transport.
class Determinism : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ = StartCluster({});
    if (cluster_ == nullptr) return;
    for (const char* preset : kPresets) {
      const Completion completion = Complete(cluster_->http(), RequestFor(preset));
      ASSERT_TRUE(completion.ok()) << preset << ": " << completion.error;
      ASSERT_EQ(completion.ids.size(), static_cast<size_t>(kTokens));
      // Otherwise nothing was selected and the comparisons below say nothing.
      ASSERT_GT(completion.Stat("streamed_rows"), 0) << preset;
      ASSERT_LT(completion.Stat("resident_rows"), Prompt().size()) << preset;
      reference_[preset] = completion.ids;
    }
  }
  static void TearDownTestSuite() { cluster_ = nullptr; }
  void SetUp() override { ASSERT_EQ(reference_.size(), kPresets.size()) << "the undisturbed run has failed"; }

  static void ExpectReferenceFrom(const Cluster& cluster) {
    for (const char* preset : kPresets) {
      const Completion completion = Complete(cluster.http(), RequestFor(preset));
      EXPECT_TRUE(completion.ok()) << preset << ": " << completion.error;
      EXPECT_EQ(completion.ids, reference_[preset]) << preset;
    }
  }

  static std::unique_ptr<Cluster> cluster_;
  static std::map<std::string, TokenIds> reference_;
};
std::unique_ptr<Cluster> Determinism::cluster_;
std::map<std::string, TokenIds> Determinism::reference_;

TEST_F(Determinism, PresetsSelectDifferently) {
  Json request = RequestFor("winnow");
  request["winnow"] = {{"selection", "dense"}};
  const Completion dense = Complete(cluster_->http(), request);
  ASSERT_TRUE(dense.ok()) << dense.error;
  EXPECT_EQ(dense.Stat("streamed_rows"), 0);
  // A selection from past queries loses this prompt's thread, so at least one answer is not that of dense attention.
  EXPECT_TRUE(reference_["async-token"] != dense.ids || reference_["winnow"] != dense.ids);
}

TEST_F(Determinism, OverRepeats) {
  ExpectReferenceFrom(*cluster_);
}

TEST_F(Determinism, AloneOrInABatch) {
  const std::string_view mixed[] = {"winnow", "async-token", "depth", "winnow", "async-token", "depth"};
  std::vector<std::future<Completion>> same, others;
  for (const std::string_view preset : mixed) {
    same.push_back(std::async(std::launch::async,
                              [&, preset] { return Complete(cluster_->http(), RequestFor(std::string(preset))); }));
  }
  for (size_t i = 0; i < 2; ++i) {
    others.push_back(std::async(std::launch::async, [&, i] {
      return Complete(cluster_->http(), RequestFor("winnow", DemoText(700 + 900 * i, 5000 * i)));
    }));
  }
  for (size_t i = 0; i < same.size(); ++i) {
    const Completion completion = same[i].get();
    EXPECT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.ids, reference_[std::string(mixed[i])]) << mixed[i];
  }
  for (std::future<Completion>& other : others) {
    const Completion completion = other.get();
    EXPECT_TRUE(completion.ok()) << completion.error;
  }
}

TEST_F(Determinism, InOneProcess) {
  const auto cluster = StartCluster({"--transport=inproc"});
  ASSERT_NE(cluster, nullptr);
  ExpectReferenceFrom(*cluster);
}

TEST_F(Determinism, OverTcp) {
  const auto cluster = StartCluster({"--transport=ucx"}, {{"UCX_TLS", "tcp,self"}});
  ASSERT_NE(cluster, nullptr);
  ExpectReferenceFrom(*cluster);
}

TEST_F(Determinism, WithTwoCacheRanks) {
  const auto cluster = StartCluster({"--cache-ranks=2"});
  ASSERT_NE(cluster, nullptr);
  std::vector<std::future<Completion>> completions;
  for (const char* preset : kPresets) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      completions.push_back(
          std::async(std::launch::async, [&, preset] { return Complete(cluster->http(), RequestFor(preset)); }));
    }
  }
  for (size_t i = 0; i < completions.size(); ++i) {
    const Completion completion = completions[i].get();
    EXPECT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.ids, reference_[kPresets[i / 2]]) << kPresets[i / 2];
  }
  for (const char* rank : {"cache-0", "cache-1"}) {
    EXPECT_GT(cluster->MetricsOf(rank).Value("winnow_sequence_events_total", {{"event", "opened"}}), 0)
        << rank << " had nothing to do";
  }
}

TEST_F(Determinism, WithAnyPoolSize) {
  Process help({WinnowBinary(), "up", "--help"}, {});
  bool known = false;
  while (const auto line = help.ReadLine(std::chrono::seconds(10))) {
    known |= line->find("pool-factor") != std::string::npos;
  }
  if (!known) GTEST_SKIP() << "winnow up has no --pool-factor";
  for (const char* factor : {"1", "3"}) {
    SCOPED_TRACE(factor);
    const auto cluster = StartCluster({std::string("--pool-factor=") + factor});
    ASSERT_NE(cluster, nullptr);
    ExpectReferenceFrom(*cluster);
  }
}

}  // namespace
}  // namespace winnow::e2e
