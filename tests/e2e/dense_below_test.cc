// Positions that a specification leaves dense attend to everything, and the ones behind them to what is selected,
// whoever selects: a cache rank that streams rows, or the GPU that has all of them, here one made of host memory.
#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

constexpr size_t kDenseBelow = 400;
constexpr const char* kSelection = "--selection=exact-token,budget=64,recent=32,dense_below_tokens=400";

struct Streamed {
  static Cluster::Options Options() {
    return {.flags = {kSelection, "--max-context=1024", "--max-running=6", "--prefix-cache=false"}};
  }
};
struct InPlaceFromAPosition {
  static Cluster::Options Options() {
    return {.flags = {"--device=cuda:0", kSelection, "--select-in-place=on", "--max-context=1024", "--max-running=6",
                      "--prefix-cache=false"},
            .environment = {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}}};
  }
};

Json Request(size_t prompt_tokens, int max_tokens) {
  return GreedyRequest(DemoText(prompt_tokens, prompt_tokens), max_tokens);
}

template <typename Where>
class DenseBelow : public SharedCluster<Where> {
 protected:
  static Completion Ask(const Json& request) {
    Completion answer = Complete(SharedCluster<Where>::cluster_->http(), request);
    EXPECT_TRUE(answer.ok()) << answer.error;
    return answer;
  }
};
using Placements = testing::Types<Streamed, InPlaceFromAPosition>;
TYPED_TEST_SUITE(DenseBelow, Placements);

TYPED_TEST(DenseBelow, WhatLiesBelowIsDense) {
  const Json request = Request(300, 90);
  Json dense = request;
  dense["winnow"] = {{"selection", "dense"}};
  const Completion below = this->Ask(request);
  EXPECT_EQ(below.ids, this->Ask(dense).ids);
  EXPECT_EQ(below.Stat("captured_mass_mean"), 1.0);
}

TYPED_TEST(DenseBelow, WhatLiesBehindIsSelected) {
  const Completion behind = this->Ask(Request(kDenseBelow + 50, 60));
  EXPECT_GT(behind.Stat("captured_mass_mean"), 0.2);
  EXPECT_LT(behind.Stat("captured_mass_mean"), 1.0);
}

// Some cross the border, some lie below it and some behind, in one batch.
TYPED_TEST(DenseBelow, CrossingDependsOnNobodyElse) {
  std::vector<Json> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(Request(280 + 37 * i, 90 + 7 * i));
  std::vector<TokenIds> alone;
  for (const Json& request : requests) alone.push_back(this->Ask(request).ids);
  std::vector<std::future<Completion>> together;
  for (const Json& request : requests) {
    together.push_back(std::async(std::launch::async, [this, request] { return this->Ask(request); }));
  }
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(together[i].get().ids, alone[i]) << i;
}

}  // namespace
}  // namespace winnow::e2e
