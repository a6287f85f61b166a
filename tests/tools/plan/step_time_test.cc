#include "tools/plan/step_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/synthetic_models.h"
#include "common/selection/presets.h"

namespace winnow {
namespace {

using testing::HasSubstr;

PlanModel ModelNamed(const char* name) {
  return PlanModelOf(*SyntheticModelConfig(name), 2, 2);
}

PlanWorkload StepLoad(double context) {
  return {.context_tokens = context, .budget_tokens = 2048 + 68, .overlap = 0.75};
}

StepPlacement InPlace() {
  return {.selected_by = SelectedBy::kInPlace, .scorer = ScorerOf(*FindPreset("winnow"), 2)};
}

// A model of round figures: 1 GB of weights, 1 kB of rows per token, of which half is key, 10 layers.
PlanModel RoundModel() {
  PlanModel model;
  model.weight_bytes = model.step_weight_bytes = 1e9;
  model.step_parameters = 0.5e9;
  model.kv_token_bytes = 1000;
  model.attention_flops = 0;
  model.num_layers = 10;
  model.hidden_size = 1000;
  return model;
}

TEST(StepTime, IsWhatIsReadOverTheRateAndTheGapsBetweenKernels) {
  StepPlacement dense;
  dense.compute.memory_bytes_per_s = 1e12;
  const StepTime time = EstimateStep(RoundModel(), dense, StepLoad(10000), 100);
  // 1 GB of weights and 100 x 10 MB of rows.
  EXPECT_NEAR(time.floor_s, 2e-3, 1e-9);
  EXPECT_NEAR(time.expected_s, 2e-3 / 0.92 + 10 * 27e-6, 1e-9);
  EXPECT_THAT(time.arithmetic, HasSubstr("= 2.00 ms at least"));
}

TEST(StepTime, CpusReadAtTheRateThatWasMeasured) {
  StepPlacement cpu{.on_gpu = false};
  cpu.compute = {.memory_bytes_per_s = 1e10, .flops_per_s = 1e12};
  EXPECT_NEAR(EstimateStep(RoundModel(), cpu, StepLoad(10000), 1).expected_s, 0.101, 1e-9);
  // Those that select read from the same memory: 2,116 rows are attended to, 10,000 keys of 8 bits scored, and a
  // quarter of 2,116 rows copied at the rate between them.
  cpu.selected_by = SelectedBy::kCacheHost;
  cpu.scorer = {.kind = PlanScorer::Kind::kAllKeys, .key_element_bytes = 1};
  cpu.cache = cpu.compute;
  const StepTime selects = EstimateStep(RoundModel(), cpu, StepLoad(10000), 1);
  EXPECT_NEAR(selects.expected_s, (1e9 + 2116e3 + 10000 * 250) / 1e10 + 2116e3 / 4 / 450e9, 1e-9);
}

TEST(StepTime, GpusThatShareAModelHaveTheirPartEachAndAddUpTwiceALayer) {
  StepPlacement two{.devices = 2};
  two.compute = {.memory_bytes_per_s = 1e12, .link_bytes_per_s = 4e8};
  const StepTime time = EstimateStep(RoundModel(), two, StepLoad(10000), 100);
  EXPECT_NEAR(time.floor_s, 1e-3, 1e-9);
  // 100 rows of 1,000 f32 to the other one: 400 kB at 400 MB/s, and 8 us.
  EXPECT_NEAR(time.all_reduce_s, 20 * (1e-3 + 8e-6), 1e-9);
  EXPECT_NEAR(time.expected_s, time.compute_s + time.all_reduce_s, 1e-12);
}

TEST(StepTime, SelectionHidesOnlyWhereQueriesArePredicted) {
  StepPlacement beside{.selected_by = SelectedBy::kCacheGpus, .scorer = ScorerOf(*FindPreset("winnow"), 2)};
  const PlanModel model = ModelNamed("synthetic:qwen3-14b");
  const StepTime waits = EstimateStep(model, beside, StepLoad(32768), 8);
  EXPECT_NEAR(waits.expected_s, waits.compute_s + waits.select_s + waits.transfer_s, 1e-12);
  beside.waits_for_query = false;
  const StepTime hides = EstimateStep(model, beside, StepLoad(32768), 8);
  EXPECT_EQ(hides.expected_s, hides.compute_s) << "it is shorter than the layers";
  beside.cache_devices = 2;
  EXPECT_LT(EstimateStep(model, beside, StepLoad(32768), 8).select_s, hides.select_s);
}

// Estimates beside what docs/benchmarks.md has measured on H200s. The margins are what the documentation says of them.
TEST(StepTime, AgreesWithMeasuredSteps) {
  struct Row {
    const char* model;
    StepPlacement placement;
    double context, batch, measured_ms;
  };
  StepPlacement predicted{.selected_by = SelectedBy::kCacheGpus, .waits_for_query = false};
  predicted.scorer = ScorerOf(*FindPreset("winnow"), 2);
  for (const Row& row :
       {Row{"synthetic:qwen3-8b", {}, 16384, 1, 4.94}, Row{"synthetic:qwen3-8b", {}, 16384, 8, 8.63},
        Row{"synthetic:qwen3-8b", {}, 16384, 16, 13.17}, Row{"synthetic:qwen3-8b", InPlace(), 16384, 1, 5.87},
        Row{"synthetic:qwen3-8b", InPlace(), 16384, 8, 8.26}, Row{"synthetic:qwen3-8b", InPlace(), 16384, 16, 11.20},
        Row{"synthetic:qwen3-14b", {}, 32768, 8, 18.95}, Row{"synthetic:qwen3-14b", predicted, 32768, 1, 7.44},
        Row{"synthetic:qwen3-14b", predicted, 32768, 8, 8.33},
        Row{"synthetic:qwen3-14b", predicted, 32768, 16, 9.51}}) {
    const double expected_ms =
        EstimateStep(ModelNamed(row.model), row.placement, StepLoad(row.context), row.batch).expected_s * 1e3;
    const double ratio = row.measured_ms / expected_ms;
    RecordProperty("ratio", std::to_string(ratio));
    EXPECT_GT(ratio, 0.88) << row.model << " " << row.batch << ": " << row.measured_ms << " over " << expected_ms;
    EXPECT_LT(ratio, 1.25) << row.model << " " << row.batch << ": " << row.measured_ms << " over " << expected_ms;
  }
}

TEST(FirstToken, IsTheArithmeticOfThePromptOverTheRateOfProducts) {
  PlanModel model = RoundModel();
  model.attention_flops = 1000;
  StepPlacement dense;
  dense.compute.flops_per_s = 1e14 / 0.83;
  const FirstToken first = EstimateFirstToken(model, dense, StepLoad(10000), 0, 2048, 1);
  // 1 GFLOP a token, and half of 10,000 x 10,000 pairs.
  const double step_s = EstimateStep(model, dense, StepLoad(10000), 1).expected_s;
  EXPECT_NEAR(first.alone_s, (1e9 * 10000 + 1000 * 1e8 / 2) / 1e14 + step_s, 1e-9);
  EXPECT_EQ(first.last_of_batch_s, first.alone_s) << "nobody is before it";
  const FirstToken of_four = EstimateFirstToken(model, dense, StepLoad(10000), 0, 2048, 4);
  EXPECT_GT(of_four.last_of_batch_s, 3.9 * (first.alone_s - step_s)) << "three prompts are computed before it";
}

TEST(FirstToken, OfACachedPrefixRowsComeBackInThePlaceOfArithmetic) {
  const PlanModel model = ModelNamed("synthetic:qwen3-14b");
  const FirstToken whole = EstimateFirstToken(model, {}, StepLoad(32000), 0, 2048, 1);
  const FirstToken cached = EstimateFirstToken(model, {}, StepLoad(32000), 31936, 2048, 1);
  EXPECT_LT(cached.alone_s, whole.alone_s / 2);
  EXPECT_THAT(cached.arithmetic, HasSubstr("5.23 GB of cached rows"));
}

// 14B: a prompt of 8,000 after 414 ms, of 32,000 after 2,121; all but 64 tokens of it cached, after 670 to 684; 8,192
// tokens on one GPU 331 ms to 395, on two 192.
TEST(FirstToken, AgreesWithMeasuredOnes) {
  const PlanModel model = ModelNamed("synthetic:qwen3-14b");
  EXPECT_NEAR(EstimateFirstToken(model, {}, StepLoad(8000), 0, 2048, 1).alone_s, 0.414, 0.1 * 0.414);
  EXPECT_NEAR(EstimateFirstToken(model, {}, StepLoad(32000), 0, 2048, 1).alone_s, 2.121, 0.1 * 2.121);
  EXPECT_NEAR(EstimateFirstToken(model, {}, StepLoad(32000), 31936, 2048, 1).alone_s, 0.677, 0.1 * 0.677);
  EXPECT_NEAR(EstimateFirstToken(model, {.devices = 2}, StepLoad(8192), 0, 2048, 1).alone_s, 0.192, 0.15 * 0.192);
}

TEST(GpuSheet, IsFoundByTheNameOfADatasheetAndOfADriver) {
  EXPECT_EQ(FindGpuSheet("h200")->description, "H200, 141 GB");
  EXPECT_EQ(FindGpuSheet("NVIDIA H200")->rates, DeviceRates());
  EXPECT_EQ(FindGpuSheet("NVIDIA H100 80GB HBM3")->name, "H100");
  EXPECT_EQ(FindGpuSheet("NVIDIA H100 NVL")->name, "H100 NVL");
  EXPECT_THAT(std::string(FindGpuSheet("Voodoo").status().message()), HasSubstr("known are H200, H100 NVL"));
}

}  // namespace
}  // namespace winnow
