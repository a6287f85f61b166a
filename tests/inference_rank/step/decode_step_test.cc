#include "inference_rank/step/decode_step.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "tests/inference_rank/two_ranks.h"

namespace winnow::test {
namespace {

constexpr uint32_t kPrompt = 260, kDecodes = 8;

SelectionSpec Spec(Predictor predictor) {
  SelectionSpec spec;
  spec.predictor = predictor;
  spec.budget_tokens = predictor == Predictor::kDense ? kUnlimitedBudget : 64;
  spec.recent_tokens = 32;
  return spec;
}

// A decode step in which the cache rank has worked until `at_last_layer` is called.
class WatchedKv final : public DecodeKv {
 public:
  WatchedKv(TwoRanks& ranks, std::function<void()> at_last_layer)
      : ranks_(ranks), at_last_layer_(std::move(at_last_layer)) {}

  int Lookahead() const override { return ranks_.decode_step().Lookahead(); }
  void Publish(const DecodeLayerOutput& output) override {
    const size_t bytes = ranks_.layout().num_kv_heads * ranks_.layout().row_bytes();
    first_rows.emplace_back(output.kv_rows, output.kv_rows + bytes);
    ranks_.decode_step().Publish(output);
  }
  void AwaitSlots(int layer, SlotLists& lists) override {
    ranks_.decode_step().AwaitSlots(layer, lists);
    if (layer == ranks_.layout().num_layers - 1) at_last_layer_();
  }

  std::vector<std::vector<std::byte>> first_rows;  // by layer: K and V of the step's first sequence

 private:
  TwoRanks& ranks_;
  const std::function<void()> at_last_layer_;
};

uint32_t RowsOfFirstLayer(const TwoRanks& ranks, const Sequence& sequence) {
  return ranks.data_plane(0).store().Find(sequence.sequence_id)->kv.rows(0);
}

TEST(DecodeStep, WhatAttendsToEverythingIsSentTogetherAfterTheLastLayer) {
  TwoRanks ranks({.num_layers = 3, .storage = Dtype::kF32});
  Sequence* const dense = ranks.Prefill(1, 5, Spec(Predictor::kDense), kPrompt, kDecodes);
  Sequence* const sparse = ranks.Prefill(2, 6, Spec(Predictor::kExact), kPrompt, kDecodes);
  for (uint32_t position = kPrompt; position < kPrompt + kDecodes; ++position) {
    ASSERT_EQ(dense->next_position, position);
    WatchedKv kv(ranks, [&] {
      EXPECT_EQ(RowsOfFirstLayer(ranks, *dense), position);
      EXPECT_EQ(RowsOfFirstLayer(ranks, *sparse), position + 1);  // its last layer's selection has come
    });
    ranks.Decode({dense, sparse}, &kv);
    const size_t row_bytes = ranks.layout().row_bytes();
    for (int layer = 0; layer < ranks.layout().num_layers; ++layer) {
      for (int head = 0; head < ranks.layout().num_kv_heads; ++head) {
        const float* const stored = ranks.StoredRow(*dense, layer, head, position);
        EXPECT_EQ(std::memcmp(stored, kv.first_rows[layer].data() + head * row_bytes, row_bytes), 0);
      }
    }
  }
  EXPECT_TRUE(dense->failure.ok() && sparse->failure.ok());
  EXPECT_TRUE(ranks.malformed.empty());
}

TEST(DecodeStep, ASequenceThatPredictsFromItsPastSendsItsQueriesWhileItAttendsToEverything) {
  TwoRanks ranks({.num_layers = 3, .storage = Dtype::kF32});
  SelectionSpec spec = Spec(Predictor::kLast);
  spec.dense_below_tokens = kPrompt + kDecodes / 2;
  Sequence* const sequence = ranks.Prefill(1, 5, spec, kPrompt, kDecodes);
  for (uint32_t i = 0; i < kDecodes; ++i) ranks.Decode({sequence});
  EXPECT_TRUE(sequence->failure.ok()) << sequence->failure;
  EXPECT_EQ(RowsOfFirstLayer(ranks, *sequence), kPrompt + kDecodes);
}

TEST(DecodeStep, NothingComesOfAPayloadThatFailsItsCheckWhenItsRowsAreTaken) {
  TwoRanks ranks({.num_layers = 3, .storage = Dtype::kF32});
  ranks.leaves_unchecked = true;
  Sequence* const sequence = ranks.Prefill(1, 5, Spec(Predictor::kExact), kPrompt, kDecodes);
  ranks.Decode({sequence});
  ASSERT_TRUE(sequence->failure.ok()) << sequence->failure;
  EXPECT_EQ(sequence->next_position, kPrompt + 1);
  ranks.damages_rows = true;
  ranks.Decode({sequence});
  EXPECT_TRUE(absl::IsDataLoss(sequence->failure)) << sequence->failure;
  EXPECT_EQ(sequence->next_position, kPrompt + 1) << "the step gave no token";
}

}  // namespace
}  // namespace winnow::test
