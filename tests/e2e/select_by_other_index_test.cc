// Requests that select in place by another index than the server's own selection has, on a GPU made of host memory
// (tests/support/host_gpu): their answers are those of a server whose own selection it is, whoever shares their prompt.
#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "tests/e2e/disturbed_answers.h"
#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

constexpr const char* kWinnow = "winnow,budget=128";
constexpr const char* kQuest = "quest,budget=96";
constexpr double kTokenBytes = 8 * 2 * 128 * 2;  // KV of the demo model

Cluster::Options GpuWith(const char* selection, std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--device=cuda:0", std::string("--selection=") + selection, "--select-in-place=on"});
  return {.flags = std::move(flags), .environment = {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}}};
}

struct OfWinnow {
  static Cluster::Options Options() { return GpuWith("winnow,budget=1024", {"--max-context=2048", "--max-running=8"}); }
};

Json Request(const TokenIds& prompt, int max_tokens, const char* selection) {
  Json request = GreedyRequest(prompt, max_tokens);
  request["winnow"] = {{"selection", selection}};
  return request;
}

class SelectByOtherIndex : public SharedCluster<OfWinnow> {
 protected:
  static double Count(const char* metric) { return cluster_->MetricsOf("inference-0").Value(metric); }
  static TokenIds Ids(const Json& request) {
    const Completion completion = Complete(cluster_->http(), request);
    EXPECT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.Stat("streamed_rows"), 0);
    return completion.ids;
  }
  // On a server whose own selection it is, and that shares no rows.
  static std::vector<TokenIds> IdsOfItsOwn(const char* selection, const std::vector<Json>& requests) {
    absl::StatusOr<std::unique_ptr<Cluster>> own = Cluster::Start(
        GpuWith(selection, {"--max-context=2048", "--max-running=8", "--keep-prefixes=false", "--prefix-cache=false"}));
    EXPECT_TRUE(own.ok()) << own.status().message();
    return own.ok() ? IdsAlone(**own, requests) : std::vector<TokenIds>(requests.size());
  }
};

TEST_F(SelectByOtherIndex, AnswersAreThoseOfAServerOfThatSelection) {
  for (const char* selection : {kQuest, "sparseserve,budget=96", "psa,budget=128"}) {
    const std::vector<Json> requests = {Request(DemoText(600, 3), 60, selection),
                                        Request(DemoText(333, 40), 60, selection)};
    const std::vector<TokenIds> expected = IdsOfItsOwn(selection, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const double before = Count("winnow_local_steps_total");
      EXPECT_EQ(Ids(requests[i]), expected[i]) << selection;
      EXPECT_EQ(Count("winnow_local_steps_total") - before, 59) << selection;
    }
  }
}

// One after the other, in both orders, and at the same time.
TEST_F(SelectByOtherIndex, PromptsAreSharedWithWhoeverReadsAnotherIndex) {
  const auto ids = [](const char* selection, size_t offset) {
    return IdsOfItsOwn(selection, {Request(DemoText(700, offset), 50, selection)}).front();
  };
  const char* const selections[] = {kWinnow, kQuest, "sparseserve,budget=96"};
  for (const size_t offset : {5000u, 6000u}) {
    std::vector<TokenIds> expected;
    for (const char* selection : selections) expected.push_back(ids(selection, offset));
    EXPECT_NE(expected[0], expected[1]);
    const size_t first = offset == 5000u ? 0 : 1;
    const double before = Count("winnow_resident_prefix_bytes");
    for (const size_t i : {first, 1 - first, first, size_t{2}}) {
      EXPECT_EQ(Ids(Request(DemoText(700, offset), 50, selections[i])), expected[i]) << selections[i];
      EXPECT_TRUE(WaitUntil(std::chrono::milliseconds(20'000), [] {
        return cluster_->MetricsOf("inference-0").Value("winnow_slot_pages", {{"state", "used"}}) == 0;
      })) << "it holds its rows yet";
    }
    EXPECT_EQ(Count("winnow_resident_prefix_bytes") - before, 640 * kTokenBytes) << "the rows are there once";
    std::vector<std::future<TokenIds>> together;
    for (int i = 0; i < 6; ++i) {
      together.push_back(std::async(std::launch::async, [&selections, offset, i] {
        return Ids(Request(DemoText(700, offset), 50, selections[i % 3]));
      }));
    }
    for (int i = 0; i < 6; ++i) EXPECT_EQ(together[i].get(), expected[i % 3]) << "together, " << selections[i % 3];
  }
}

TEST(SelectByOtherIndexOfManySequences, PreemptionAtAnyStepChangesNoAnswer) {
  absl::StatusOr<std::unique_ptr<Cluster>> cluster =
      Cluster::Start(GpuWith(kWinnow, {"--max-context=1024", "--max-running=2", "--age-bound=100ms"}));
  ASSERT_TRUE(cluster.ok()) << cluster.status().message();
  std::vector<Json> requests;
  for (const char* selection : {kWinnow, kQuest, "psa,budget=128", kQuest}) {
    requests.push_back(Request(DemoText(250 + requests.size(), 0), 60, selection));  // which begin alike
  }
  ExpectPreemptionChangesNothing(**cluster, requests, IdsAlone(**cluster, requests));
}

}  // namespace
}  // namespace winnow::e2e
