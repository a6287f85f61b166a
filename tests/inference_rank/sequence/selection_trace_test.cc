#include "inference_rank/sequence/selection_trace.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "cache_rank/store/residency.h"

namespace winnow {
namespace {

constexpr uint32_t kPrompt = 120, kMaxPositions = 600, kParts = 16;

// A cache rank's side of a few lists that selects at random, and, beside the trace, sets of the positions that each
// list attends to, has resident and has moved: brute force, row by row.
class SelectionTraceTest : public ::testing::Test {
 protected:
  static constexpr int kLayers = 2, kHeads = 2;
  const KvLayout layout_{kLayers, 4, kHeads, 4, Dtype::kF32};
  const uint32_t ring_ = wire::RingTokens(64, kBlockTokens, kSlotPageTokens);

  static SelectionSpec Spec() {
    SelectionSpec spec;
    spec.predictor = Predictor::kExact;
    spec.budget_tokens = 40;
    spec.sink_tokens = 4;
    spec.recent_tokens = 64;
    spec.pool_factor = 2;
    return spec;
  }

  struct List {
    HeadResidency residency;
    std::map<uint32_t, uint32_t> pool;  // position by pool index
    bool is_sparse = false;
  };

  void Attach(uint32_t position) {
    attach_ = position;
    lists_.assign(layout_.num_lists(), {});
    for (List& list : lists_) list.residency.Reset(kMaxPositions);
  }

  // One step, as the ranks do it; what the trace says of it must be what the sets say.
  void Step(SelectionTrace& trace, const SelectionSpec& spec, uint32_t position) {
    trace.BeginStep(position, attach_);
    std::vector<uint32_t> attended(kParts), resident(kParts), moved(kParts);
    const auto add = [&](const std::set<uint32_t>& rows, std::vector<uint32_t>* parts) {
      for (const uint32_t p : rows) ++(*parts)[uint64_t{p} * kParts / (position + 1)];
    };
    for (size_t list = 0; list < lists_.size(); ++list) {
      std::set<uint32_t> reads, holds;
      for (uint32_t p = 0; p <= position; ++p) {
        const bool everything = AttendsEverything(spec, list, position, kPrompt);
        const bool is_sink = p < spec.sink_tokens;
        if (everything || is_sink || p >= WindowStart(spec, position, kPrompt)) reads.insert(p);
        if (everything || is_sink || p + ring_ > position) holds.insert(p);
      }
      if (IsSparse(spec, list, position, kPrompt)) Select(trace, spec, list, position, &reads, &holds, &moved);
      add(reads, &attended);
      add(holds, &resident);
    }
    const std::optional<v1::SelectionTrace> told = trace.Take();
    ASSERT_TRUE(told.has_value());
    EXPECT_EQ(told->token_index(), position + 1 - kPrompt);
    EXPECT_EQ(told->context_tokens(), position + 1);
    EXPECT_EQ(told->lists(), layout_.num_lists());
    EXPECT_EQ(std::vector<uint32_t>(told->attended().begin(), told->attended().end()), attended) << position;
    EXPECT_EQ(std::vector<uint32_t>(told->resident().begin(), told->resident().end()), resident) << position;
    EXPECT_EQ(std::vector<uint32_t>(told->moved().begin(), told->moved().end()), moved) << position;
  }

  void Select(SelectionTrace& trace, const SelectionSpec& spec, size_t index, uint32_t position,
              std::set<uint32_t>* reads, std::set<uint32_t>* holds, std::vector<uint32_t>* moved) {
    List& list = lists_[index];
    if (!std::exchange(list.is_sparse, true)) {
      const uint32_t known = IdentityRows(spec, position, kPrompt, attach_);
      list.residency.Resize(PoolSlots(spec, index, kMaxPositions, layout_.group_size()));
      list.residency.SetIdentity(spec.sink_tokens, known);
      for (uint32_t i = 0; i < known; ++i) list.pool[i] = spec.sink_tokens + i;
    }
    std::set<uint32_t> chosen;
    const uint32_t end = WindowStart(spec, position, kPrompt);
    while (chosen.size() < 30) chosen.insert(spec.sink_tokens + random_() % (end - spec.sink_tokens));
    HeadDelta delta;
    ScratchBuffer<uint32_t> scratch;
    const std::vector<uint32_t> selected(chosen.begin(), chosen.end());
    list.residency.Update(**CpuKernels(), selected, position, ring_, scratch, &delta);
    trace.OnSelected(index, delta.selected);
    for (const wire::LocalRow& row : delta.local) {
      trace.OnCopied(index, row.pool_index, row.position);
      list.pool[row.pool_index] = row.position;
    }
    trace.OnStreamed(index, delta.streamed, delta.streamed_positions);
    for (size_t i = 0; i < delta.streamed.size(); ++i) {
      list.pool[delta.streamed[i]] = delta.streamed_positions[i];
      ++(*moved)[uint64_t{delta.streamed_positions[i]} * kParts / (position + 1)];
    }
    reads->insert(chosen.begin(), chosen.end());
    for (const auto& [slot, p] : list.pool) holds->insert(p);
  }

  std::mt19937 random_{7};
  uint32_t attach_ = 0;
  std::vector<List> lists_;
};

TEST_F(SelectionTraceTest, SaysWhatBruteForceFindsFromDenseStepsOnAndAcrossAttachments) {
  SelectionSpec spec = Spec();
  spec.head_budgets = {40, 40, 0, 60};  // heads become sparse at different positions, one streams
  SelectionTrace trace(spec, layout_, kPrompt, kMaxPositions, kParts);
  Attach(kPrompt);
  for (uint32_t position = kPrompt; position < 260; ++position) Step(trace, spec, position);
  Attach(260);
  for (uint32_t position = 260; position < 300; ++position) Step(trace, spec, position);
}

TEST_F(SelectionTraceTest, CountsRowsThatCameAheadOfTheStepAmongThoseThatMoved) {
  const SelectionSpec spec = Spec();
  SelectionTrace trace(spec, layout_, kPrompt, kMaxPositions, kParts);
  trace.BeginStep(300, kPrompt);
  ASSERT_TRUE(trace.Take().has_value());
  trace.OnStreamed(1, std::vector<uint32_t>{3, 5}, std::vector<uint32_t>{0, 300});
  trace.BeginStep(301, kPrompt);
  const std::optional<v1::SelectionTrace> told = trace.Take();
  EXPECT_EQ(told->moved(0), 1u);
  EXPECT_EQ(told->moved(kParts - 1), 1u);
}

TEST_F(SelectionTraceTest, NamesTheTokenThatAMassBelongsTo) {
  const SelectionSpec spec = Spec();
  SelectionTrace trace(spec, layout_, kPrompt, kMaxPositions, kParts);
  EXPECT_FALSE(trace.Take().has_value()) << "the first token is not a decode step's";

  trace.BeginStep(300, kPrompt);
  const std::optional<v1::SelectionTrace> unmeasured = trace.Take();
  EXPECT_FALSE(unmeasured->has_captured_mass());

  trace.BeginStep(301, kPrompt);
  for (const double mass : {1.0, 0.5, 0.9, 0.6}) trace.OnMass(300, mass);
  const std::optional<v1::SelectionTrace> late = trace.Take();
  EXPECT_FLOAT_EQ(late->captured_mass(), 0.75f);
  EXPECT_EQ(late->mass_token_index(), 301 - kPrompt) << "that of the step before";
  EXPECT_EQ(late->token_index(), 302 - kPrompt);
}

TEST_F(SelectionTraceTest, StepsThatAttendToEverythingHoldAllOfTheMass) {
  SelectionSpec spec = Spec();
  spec.predictor = Predictor::kDense;
  SelectionTrace trace(spec, layout_, kPrompt, kMaxPositions, kParts);
  trace.BeginStep(400, kPrompt);
  const std::optional<v1::SelectionTrace> told = trace.Take();
  EXPECT_EQ(told->captured_mass(), 1);
  EXPECT_EQ(told->mass_token_index(), told->token_index());
  uint32_t rows = 0;
  for (const uint32_t part : told->attended()) rows += part;
  EXPECT_EQ(rows, 401 * layout_.num_lists());
  EXPECT_TRUE(std::equal(told->attended().begin(), told->attended().end(), told->resident().begin()));
}

}  // namespace
}  // namespace winnow
