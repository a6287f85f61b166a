#include "tools/bench/eflops/equivalent_flops.h"

#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

// 206 FLOPs per byte, as H200's data sheet says.
constexpr MachinePeaks kPublished{.flops = 206 * 4.8e12, .memory_bytes_per_s = 4.8e12, .link_bytes_per_s = 450e9};

ModelConfig Small() {
  ModelConfig model;
  model.num_layers = 2;
  model.hidden_size = 10;
  model.intermediate_size = 20;
  model.num_query_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 8;
  return model;
}

// By hand: a layer has 10 x (32 + 2 x 16) + 32 x 10 + 3 x 10 x 20 = 1560 weights.
TEST(EquivalentFlopsTest, SmallModelByHand) {
  const StepShape shape{.batch = 3, .context = 100, .selected = 25, .page = 5};
  EXPECT_EQ(LayerWeightElements(Small()), 3120);
  const StepCost weights = WeightCost(Small(), shape);
  EXPECT_EQ(weights.flops, 2 * 3 * 3120);
  EXPECT_EQ(weights.bytes, 2 * 3120);
  // 3 sequences x 2 layers x 4 heads x 8 = 192 query features.
  const StepCost attention = AttentionCost(Small(), shape, 25);
  EXPECT_EQ(attention.flops, 4 * 192 * 25);
  EXPECT_EQ(attention.bytes, 2 * 192 * 25 * 2);
  const StepCost filter = FilterCost(Small(), shape);
  EXPECT_EQ(filter.flops, 2 * 192 * 20);
  EXPECT_EQ(filter.bytes, 192 * 20 * 2);
  EXPECT_EQ(DisaggregatedStep(Small(), shape).flops, 18720 + 19200);
  EXPECT_EQ(SelectingStep(Small(), shape).flops, 18720 + 19200 + 7680);
  EXPECT_EQ(DenseStep(Small(), shape).bytes, 6240 + 2 * 192 * 100 * 2);
  // 3 x 2 layers x 2 kv heads x 2 x 8 features x 25 rows x 2 bytes, a fifth of them.
  EXPECT_NEAR(LinkBytes(Small(), {.batch = 3, .context = 100, .selected = 25, .resident = 0.8}), 1920, 1e-9);
}

TEST(EquivalentFlopsTest, GroupsShareWhatIsReadAndNotWhatIsComputed) {
  StepShape shape{.batch = 1, .context = 100, .selected = 25, .page = 5};
  const StepCost each = AttentionCost(Small(), shape, 25), filter = FilterCost(Small(), shape);
  shape.shared_by_group = true;
  EXPECT_EQ(AttentionCost(Small(), shape, 25).flops, each.flops);
  EXPECT_EQ(AttentionCost(Small(), shape, 25).bytes, each.bytes / 2);
  EXPECT_EQ(FilterCost(Small(), shape).bytes, filter.bytes / 2);
}

TEST(EquivalentFlopsTest, ASelectionIsNeverLongerThanTheContext) {
  const StepShape shape{.batch = 1, .context = 20, .selected = 25};
  EXPECT_EQ(DisaggregatedStep(Small(), shape).flops, DenseStep(Small(), shape).flops);
}

TEST(EquivalentFlopsTest, ABytePaysForTheArithmeticOfItsTime) {
  const MachinePeaks peaks{.flops = 800, .memory_bytes_per_s = 4, .link_bytes_per_s = 1};
  EXPECT_EQ((StepCost{.flops = 50, .bytes = 2}).equivalent(peaks), 450);
  EXPECT_DOUBLE_EQ(StepSeconds({.flops = 400, .bytes = 2}, peaks), 1.0);
}

// Tera-eFLOPs of the published set-up: Qwen3-14B, T = 2048, P = 16.
struct Published {
  uint32_t batch, context;
  double selecting, disaggregated, shared_selecting, shared_disaggregated;
};

TEST(EquivalentFlopsTest, ThePublishedConfiguration) {
  const ModelConfig model = LoadModelConfig(WINNOW_SOURCE_DIR "/tools/bench/eflops/qwen3-14b").value();
  const Published table[] = {{1, 8192, 5.86, 5.82, 5.55, 5.54},       {1, 32768, 5.99, 5.82, 5.58, 5.54},
                             {1, 131072, 6.51, 5.82, 5.68, 5.54},     {8, 8192, 8.78, 8.43, 6.29, 6.22},
                             {8, 32768, 9.82, 8.43, 6.50, 6.22},      {8, 131072, 13.99, 8.43, 7.35, 6.22},
                             {64, 8192, 32.14, 29.36, 12.23, 11.67},  {64, 32768, 40.47, 29.36, 13.93, 11.67},
                             {64, 131072, 73.81, 29.36, 20.73, 11.67}};
  for (const Published& row : table) {
    StepShape shape{.batch = row.batch, .context = row.context};
    const auto tera = [&](const StepCost& cost) { return cost.equivalent(kPublished) / 1e12; };
    // Printed with two decimals.
    EXPECT_NEAR(tera(SelectingStep(model, shape)), row.selecting, 0.0051) << row.batch << " " << row.context;
    EXPECT_NEAR(tera(DisaggregatedStep(model, shape)), row.disaggregated, 0.0051) << row.batch << " " << row.context;
    shape.shared_by_group = true;
    EXPECT_NEAR(tera(SelectingStep(model, shape)), row.shared_selecting, 0.0051) << row.batch << " " << row.context;
    EXPECT_NEAR(tera(DisaggregatedStep(model, shape)), row.shared_disaggregated, 0.0051)
        << row.batch << " " << row.context;
  }
}

}  // namespace
}  // namespace winnow
