#include "cache_rank/judge_head.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/cache_rank/stored_keys.h"

namespace winnow::test {
namespace {

TEST(DecideCorrection, DecisionTable) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  using enum CorrectionAction;
  struct Row {
    Correction correction;
    float wanted, mass, with_top_k;
    CorrectionAction action;
  };
  for (const Row& row :
       {Row{Correction::kNone, 0.0f, 0.1f, 0.2f, kNone}, Row{Correction::kNone, 0.0f, kNan, kNan, kNone},
        Row{Correction::kRemote, 0.0f, 0.1f, 0.2f, kMissedTopK},
        Row{Correction::kRemote, 0.0f, 1.0f, 1.0f, kMissedTopK}, Row{Correction::kNone, 0.9f, 0.9f, 0.95f, kNone},
        Row{Correction::kNone, 0.9f, 0.89f, 0.9f, kMissedTopK}, Row{Correction::kNone, 0.9f, 0.5f, 0.89f, kComplement},
        Row{Correction::kNone, 0.9f, kNan, kNan, kComplement},
        Row{Correction::kRemote, 0.9f, 0.95f, 0.97f, kMissedTopK},
        Row{Correction::kRemote, 0.9f, 0.5f, 0.92f, kMissedTopK},
        Row{Correction::kRemote, 0.9f, 0.5f, 0.6f, kComplement},
        Row{Correction::kNone, 1.0f, 0.999f, 0.9999f, kComplement}, Row{Correction::kNone, 1.0f, 1.0f, 1.0f, kNone}}) {
    SelectionSpec spec = SmallSpec(Predictor::kDepth);
    spec.correction = row.correction;
    spec.min_captured_mass = row.wanted;
    EXPECT_EQ(DecideCorrection(spec, row.mass, row.with_top_k), row.action)
        << row.wanted << " " << row.mass << " " << row.with_top_k;
  }
}

// One group's queries, keys and values in double.
class JudgeHeadTest : public testing::Test {
 protected:
  static constexpr uint32_t kPosition = 700;
  static constexpr int kHead = 1;
  // Sums of up to 700 products of f32; keys are f32 as stored.
  static constexpr double kTolerance = 2e-5;

  JudgeHeadTest() {
    const int dim = shape_.layout.head_dim;
    for (int g = 0; g < shape_.layout.group_size(); ++g) {
      Vector q;
      for (int d = 0; d < dim; ++d) query_.push_back(Noise(21, g, d)), q.push_back(query_.back());
      queries_.push_back(q);
    }
    importance_ = ImportanceReference(GroupAggregation::kSoftmaxSum, queries_, stored_.Keys(kHead, kPosition), 1);
    recent_ = RecentStart(kPosition, spec_.recent_tokens, spec_.sink_tokens, kBlockTokens);
    for (uint32_t i = 0; i < spec_.budget_tokens; ++i) selected_.push_back(10 + 9 * i);
  }

  HeadPartial Judge() {
    HeadPartial partial;
    partial.o = {1, 2, 3};  // of an earlier use
    JudgeHead(kernels_, shape_.model,
              {.spec = &spec_,
               .position = kPosition,
               .budget_tokens = spec_.budget_tokens,
               .tiles = stored_.kv.tiles(0, kHead),
               .row_blocks = stored_.kv.row_blocks(0, kHead),
               .query = query_.data(),
               .selected = selected_,
               .mass_of_top_k = {}},
              scratch_, judge_, &partial);
    return partial;
  }

  std::vector<uint32_t> TopK() const {
    std::vector<uint32_t> all(recent_ - spec_.sink_tokens);
    for (uint32_t i = 0; i < all.size(); ++i) all[i] = spec_.sink_tokens + i;
    std::stable_sort(all.begin(), all.end(), [&](uint32_t a, uint32_t b) { return importance_[a] > importance_[b]; });
    all.resize(spec_.budget_tokens);
    std::sort(all.begin(), all.end());
    return all;
  }
  double Mass(const std::vector<uint32_t>& selected) const {
    return MassReference(queries_, stored_.Keys(kHead, kPosition + 1), 1, spec_.sink_tokens, selected, recent_);
  }
  std::vector<uint32_t> Without(const std::vector<uint32_t>& rows) const {
    std::vector<uint32_t> rest;
    std::set_difference(rows.begin(), rows.end(), selected_.begin(), selected_.end(), std::back_inserter(rest));
    return rest;
  }
  std::vector<uint32_t> With(const std::vector<uint32_t>& rows) const {
    std::vector<uint32_t> both;
    std::set_union(rows.begin(), rows.end(), selected_.begin(), selected_.end(), std::back_inserter(both));
    return both;
  }
  void ExpectStateOver(const HeadPartial& partial, const std::vector<uint32_t>& rows) const {
    const int dim = shape_.layout.head_dim;
    ASSERT_EQ(partial.rows_read, rows.size());
    ASSERT_EQ(partial.o.size(), queries_.size() * dim);
    ASSERT_EQ(partial.lse.size(), queries_.size());
    for (size_t g = 0; g < queries_.size(); ++g) {
      double sum = 0;
      Vector o(dim);
      for (const uint32_t row : rows) {
        double score = 0;
        for (int d = 0; d < dim; ++d) score += queries_[g][d] * stored_.keys[kHead][row][d];
        const double weight = std::exp(score);
        sum += weight;
        for (int d = 0; d < dim; ++d) o[d] += weight * Noise(6, kHead, row, dim + d);
      }
      EXPECT_NEAR(partial.lse[g], std::log(sum), kTolerance);
      for (int d = 0; d < dim; ++d) EXPECT_NEAR(partial.o[g * dim + d], o[d] / sum, kTolerance);
    }
  }

  const ServedShape shape_ = SmallShape(1);
  const KernelTable& kernels_ = *CpuKernels("portable").value();
  const StoredKeys stored_{shape_, 6, kPosition + 1};
  SelectionSpec spec_ = SmallSpec(Predictor::kDepth);
  std::vector<float> query_;
  std::vector<Vector> queries_;
  Vector importance_;
  uint32_t recent_ = 0;
  std::vector<uint32_t> selected_;
  SelectScratch scratch_;
  JudgeScratch judge_;
};

TEST_F(JudgeHeadTest, RemoteCorrectionAddsExactlyTheTopKThatAMisses) {
  spec_.correction = Correction::kRemote;
  const HeadPartial partial = Judge();
  EXPECT_EQ(partial.action, CorrectionAction::kMissedTopK);
  EXPECT_NEAR(partial.mass_before, Mass(selected_), kTolerance);
  EXPECT_NEAR(partial.mass_after, Mass(With(TopK())), kTolerance);
  EXPECT_GE(partial.mass_after, Mass(TopK()) - kTolerance) << "at least the oracle's";
  ExpectStateOver(partial, Without(TopK()));
}

TEST_F(JudgeHeadTest, AThresholdBetweenTheTwoMassesAddsTheTopKAndOneAboveBothTheRest) {
  const float before = static_cast<float>(Mass(selected_)), with_top_k = static_cast<float>(Mass(With(TopK())));
  ASSERT_LT(before + 0.01, with_top_k);
  ASSERT_LT(with_top_k + 0.01, 1);
  spec_.min_captured_mass = before - 0.005f;
  const HeadPartial none = Judge();
  EXPECT_EQ(none.action, CorrectionAction::kNone);
  EXPECT_EQ(none.rows_read, 0u);
  EXPECT_TRUE(none.o.empty() && none.lse.empty());
  EXPECT_EQ(none.mass_after, none.mass_before);

  spec_.min_captured_mass = with_top_k - 0.005f;
  ExpectStateOver(Judge(), Without(TopK()));

  spec_.min_captured_mass = with_top_k + 0.005f;
  const HeadPartial whole = Judge();
  EXPECT_EQ(whole.action, CorrectionAction::kComplement);
  EXPECT_EQ(whole.mass_after, 1);
  std::vector<uint32_t> all;
  for (uint32_t j = spec_.sink_tokens; j < recent_; ++j) all.push_back(j);
  ExpectStateOver(whole, Without(all));
}

TEST_F(JudgeHeadTest, NothingIsAddedWhereNothingIsMissed) {
  spec_.correction = Correction::kRemote;
  selected_ = TopK();
  const HeadPartial partial = Judge();
  EXPECT_EQ(partial.action, CorrectionAction::kNone);
  EXPECT_EQ(partial.mass_after, partial.mass_before);
  EXPECT_TRUE(partial.o.empty());
}

TEST_F(JudgeHeadTest, OverflowedQueriesAreCorrectedByEverything) {
  spec_.min_captured_mass = 0.5f;
  std::fill(query_.begin(), query_.end(), NAN);
  const HeadPartial partial = Judge();
  EXPECT_EQ(partial.action, CorrectionAction::kComplement);
  EXPECT_EQ(partial.rows_read, recent_ - spec_.sink_tokens - selected_.size());
}

}  // namespace
}  // namespace winnow::test
