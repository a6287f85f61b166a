#include "cache_rank/step/batch_selector.h"

#include <gtest/gtest.h>

#include <set>

#include "cache_rank/select/host/select_head.h"
#include "tests/cache_rank/fake_rank.h"

// What does not select on the executor is asked for whole batches, and nothing else changes.

namespace winnow::test {
namespace {

// By SelectHead, counting.
class CountingSelector final : public BatchSelector {
 public:
  struct Log {
    std::set<std::pair<int, uint32_t>> selected;  // (layer, position)
    std::vector<uint64_t> forgotten;
    bool takes = true;
    bool fails = false;
  };
  CountingSelector(const ServedShape& shape, Log* log) : shape_(shape), log_(log) {}

  bool Takes(const CachedSequence&) override { return log_->takes; }
  absl::Status Select(int layer, std::span<const Item> items) override {
    if (log_->fails) return absl::InternalError("gone");
    for (const Item& item : items) {
      log_->selected.emplace(layer, item.position);
      for (int head = 0; head < shape_.layout.num_kv_heads; ++head) {
        if (!item.sequence->IsSparse(item.sequence->list(layer, head), item.position)) continue;
        const size_t group_floats = static_cast<size_t>(shape_.layout.group_size()) * shape_.layout.head_dim;
        SelectHead(*CpuKernels().value(), shape_.model,
                   {.spec = &item.sequence->spec,
                    .position = item.position,
                    .budget_tokens = item.sequence->spec.budget_tokens,
                    .index = item.sequence->kv.index(layer, head),
                    .first_query_head = head * shape_.layout.group_size(),
                    .target = item.queries + head * group_floats,
                    .prompt_tokens = item.sequence->prompt_tokens},
                   scratch_, {&item.layer->heads[head].selected, 1});
      }
    }
    return absl::OkStatus();
  }
  void Forget(uint64_t id) override { log_->forgotten.push_back(id); }
  void Retain(const std::function<bool(uint64_t)>&) override {}

 private:
  const ServedShape shape_;
  Log* const log_;
  SelectScratch scratch_;
};

class BatchSelectorTest : public testing::TestWithParam<Predictor> {
 protected:
  static constexpr uint32_t kPrompt = 200;

  // Selections of some positions, by position, of a sequence that is served with or without the selector.
  auto Serve(bool by_batch, bool measures = false) {
    TestCluster::Options options;
    options.data_plane = TestCluster::SmallDataPlane();
    options.data_plane.selector.measure_captured_mass = measures;
    if (by_batch) {
      options.data_plane.new_batch_selector =
          [this](const ServedShape& shape) -> absl::StatusOr<std::unique_ptr<BatchSelector>> {
        return std::make_unique<CountingSelector>(shape, &log_);
      };
    }
    TestCluster cluster(options);
    const std::unique_ptr<FakeRank> rank = cluster.NewRank();
    FakeSequence* sequence = rank->Prefill(1, /*seed=*/5, SmallSpec(GetParam()), kPrompt);
    for (int step = 0; step < 6; ++step) EXPECT_TRUE(rank->Decode({sequence}));
    EXPECT_TRUE(rank->errors.empty());
    return sequence->selections;
  }

  CountingSelector::Log log_;
};

TEST_P(BatchSelectorTest, SelectsForAllLayersAndPositions) {
  const auto selections = Serve(/*by_batch=*/true);
  for (int layer = 0; layer < 3; ++layer) {
    for (uint32_t position = kPrompt; position < kPrompt + 6; ++position) {
      EXPECT_TRUE(log_.selected.contains({layer, position})) << "layer " << layer << " position " << position;
    }
  }
  EXPECT_EQ(selections, Serve(/*by_batch=*/false));
}

TEST_P(BatchSelectorTest, TheExecutorSelectsForWhatIsNotTaken) {
  log_.takes = false;
  EXPECT_EQ(Serve(/*by_batch=*/true), Serve(/*by_batch=*/false));
  EXPECT_TRUE(log_.selected.empty());
}

TEST_P(BatchSelectorTest, TheExecutorTakesOverAfterAFailure) {
  log_.fails = true;
  EXPECT_EQ(Serve(/*by_batch=*/true), Serve(/*by_batch=*/false));
}

TEST_P(BatchSelectorTest, MeasuredPositionsAreSelectedForByThePassThatMeasures) {
  const auto selections = Serve(/*by_batch=*/true, /*measures=*/true);
  EXPECT_EQ(selections, Serve(/*by_batch=*/false, /*measures=*/true));
  EXPECT_LT(log_.selected.size(), 3u * 6u) << "the first positions of an answer are measured";
}

TEST_P(BatchSelectorTest, ANewSequenceHasNothingInCommonWithAnOldOneOfItsId) {
  Serve(/*by_batch=*/true);
  EXPECT_EQ(log_.forgotten, std::vector<uint64_t>{1});
}

INSTANTIATE_TEST_SUITE_P(, BatchSelectorTest,
                         testing::Values(Predictor::kExact, Predictor::kDepth, Predictor::kTemporal));

}  // namespace
}  // namespace winnow::test
