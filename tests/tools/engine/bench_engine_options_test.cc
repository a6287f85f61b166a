#include "tools/engine/bench_engine_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(BenchEngineOptions, ListsAreReadInOrder) {
  BenchEngineOptions options;
  options.context = "32k,1m";
  options.batch = "1,8,24";
  options.mode = "dense,disaggregated";
  options.devices = "2,0";
  options.prefill = "8k,32k";
  const absl::StatusOr<BenchEnginePlan> plan = ReadBenchEngineOptions(options);
  ASSERT_THAT(plan, IsOkStatus());
  EXPECT_THAT(plan->contexts, ElementsAre(32768u, 1048576u));
  EXPECT_THAT(plan->batches, ElementsAre(1, 8, 24));
  EXPECT_THAT(plan->placements, ElementsAre(KvPlacement::kDense, KvPlacement::kDisaggregated));
  EXPECT_THAT(plan->devices, ElementsAre(2, 0));
  EXPECT_THAT(plan->prefill_tokens, ElementsAre(8192u, 32768u));
  EXPECT_EQ(plan->spec.budget_tokens, 2048u);
}

// What changes of the defaults, and what the error says.
struct Mistake {
  std::string BenchEngineOptions::*option;
  const char* text;
  const char* says;
};

class BenchEngineMistakes : public testing::TestWithParam<Mistake> {};

TEST_P(BenchEngineMistakes, AreNamed) {
  BenchEngineOptions options;
  options.*GetParam().option = GetParam().text;
  const absl::StatusOr<BenchEnginePlan> plan = ReadBenchEngineOptions(options);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(All, BenchEngineMistakes,
                         testing::Values(Mistake{&BenchEngineOptions::batch, "0", "from 1 to 64"},
                                         Mistake{&BenchEngineOptions::batch, "1,65", "from 1 to 64"},
                                         Mistake{&BenchEngineOptions::batch, "", "is empty"},
                                         Mistake{&BenchEngineOptions::mode, "sparse",
                                                 "dense, fixed, colocated, colocated-dram, disaggregated"},
                                         Mistake{&BenchEngineOptions::mode, "disaggregated", "takes 2 GPUs"},
                                         Mistake{&BenchEngineOptions::tensor_parallel, "3", "1, 2 or 4"},
                                         Mistake{&BenchEngineOptions::tensor_parallel, "2", "takes 2 GPUs"},
                                         Mistake{&BenchEngineOptions::kv, "f32", "bf16"},
                                         Mistake{&BenchEngineOptions::selections, "quests", "quest"},
                                         Mistake{&BenchEngineOptions::context, "lots", "no number of tokens"},
                                         Mistake{&BenchEngineOptions::context, "2k", "all of a context of 2048"}),
                         [](const auto& info) { return "Mistake" + std::to_string(info.index); });

TEST(BenchEngineOptions, SelectionsAreSeparatedBySemicolons) {
  BenchEngineOptions options;
  options.selections = "quest; winnow,scorer=two-stage";
  options.batch = "8,max";
  const absl::StatusOr<BenchEnginePlan> plan = ReadBenchEngineOptions(options);
  ASSERT_THAT(plan, IsOkStatus());
  EXPECT_THAT(plan->selections, ElementsAre("quest", "winnow,scorer=two-stage"));
  EXPECT_THAT(plan->batches, ElementsAre(8, BenchEnginePlan::kGreatestBatch));
  options.selections = "all";
  EXPECT_EQ(ReadBenchEngineOptions(options)->selections.size(), 8u);
}

}  // namespace
}  // namespace winnow
