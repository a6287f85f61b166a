#include "cache_rank/select/verify/verify_head.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/cache_rank/store/stored_keys.h"

namespace winnow::test {
namespace {

// One group's queries, keys and values in double.
class VerifyHeadTest : public testing::Test {
 protected:
  static constexpr uint32_t kPosition = 700;
  static constexpr int kHead = 1;
  // Sums of up to 700 products of f32; keys are f32 as stored.
  static constexpr double kTolerance = 2e-5;

  VerifyHeadTest() {
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

  HeadPartial Verify() {
    HeadPartial partial;
    partial.o = {1, 2, 3};  // of an earlier use
    VerifyHead(kernels_, shape_.model,
               {.spec = &spec_,
                .position = kPosition,
                .budget_tokens = spec_.budget_tokens,
                .index = stored_.kv.index(0, kHead),
                .row_blocks = stored_.kv.row_blocks(0, kHead),
                .query = query_.data(),
                .selected = selected_,
                .mass_of_top_k = mass_of_top_k_},
               scratch_, verify_, &partial);
    return partial;
  }

  // Selectable rows in the order of their importance.
  std::vector<uint32_t> Order() const {
    std::vector<uint32_t> all(recent_ - spec_.sink_tokens);
    for (uint32_t i = 0; i < all.size(); ++i) all[i] = spec_.sink_tokens + i;
    std::stable_sort(all.begin(), all.end(), [&](uint32_t a, uint32_t b) { return importance_[a] > importance_[b]; });
    return all;
  }
  std::vector<uint32_t> TopK() const {
    std::vector<uint32_t> top_k = Order();
    top_k.resize(spec_.budget_tokens);
    std::sort(top_k.begin(), top_k.end());
    return top_k;
  }
  // The `count` most important rows that A lacks.
  std::vector<uint32_t> BestMissed(size_t count) const {
    std::vector<uint32_t> best;
    for (const uint32_t row : Order()) {
      if (best.size() < count && !std::binary_search(selected_.begin(), selected_.end(), row)) best.push_back(row);
    }
    std::sort(best.begin(), best.end());
    return best;
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
  std::optional<float> mass_of_top_k_;
  SelectScratch scratch_;
  VerifyScratch verify_;
};

TEST_F(VerifyHeadTest, RemoteCorrectionAddsExactlyTheTopKThatAMisses) {
  spec_.correction = Correction::kRemote;
  const HeadPartial partial = Verify();
  EXPECT_EQ(partial.action, CorrectionAction::kMissedTopK);
  EXPECT_NEAR(partial.mass_before, Mass(selected_), kTolerance);
  EXPECT_NEAR(partial.mass_after, Mass(With(TopK())), kTolerance);
  EXPECT_GE(partial.mass_after, Mass(TopK()) - kTolerance) << "at least the oracle's";
  ExpectStateOver(partial, Without(TopK()));
}

TEST_F(VerifyHeadTest, AHeadAboveTheThresholdIsLeftAlone) {
  spec_.min_captured_mass = static_cast<float>(Mass(selected_)) - 0.005f;
  const HeadPartial partial = Verify();
  EXPECT_EQ(partial.action, CorrectionAction::kNone);
  EXPECT_EQ(partial.rows_read, 0u);
  EXPECT_EQ(partial.rows_needed, 0u);
  EXPECT_TRUE(partial.o.empty() && partial.lse.empty());
  EXPECT_NEAR(partial.mass_before, Mass(selected_), kTolerance);
  EXPECT_EQ(partial.mass_after, partial.mass_before);
}

// With the guard alone, and with remote correction, which reads the missed top-k in any case.
TEST_F(VerifyHeadTest, AHeadBelowTheThresholdGetsTheFewestRowsThatReachIt) {
  const size_t missed_top_k = Without(TopK()).size();
  ASSERT_GT(missed_top_k, 12u);
  const size_t all = recent_ - spec_.sink_tokens - selected_.size();
  for (const size_t count : {size_t{1}, missed_top_k / 2, missed_top_k, missed_top_k + 1, 3 * missed_top_k, all - 1}) {
    SCOPED_TRACE(count);
    const double less = Mass(With(BestMissed(count - 1))), enough = Mass(With(BestMissed(count)));
    if (enough - less < 2 * kTolerance) continue;  // which side it falls on is a matter of rounding
    spec_.min_captured_mass = static_cast<float>((less + enough) / 2);
    for (const Correction correction : {Correction::kNone, Correction::kRemote}) {
      spec_.correction = correction;
      const size_t read = correction == Correction::kRemote ? std::max(count, missed_top_k) : count;
      const HeadPartial partial = Verify();
      EXPECT_EQ(partial.rows_needed, count);
      EXPECT_EQ(partial.action, read > missed_top_k ? CorrectionAction::kWidened : CorrectionAction::kMissedTopK);
      EXPECT_NEAR(partial.mass_before, Mass(selected_), kTolerance);
      EXPECT_NEAR(partial.mass_after, Mass(With(BestMissed(read))), kTolerance);
      EXPECT_GE(partial.mass_after, spec_.min_captured_mass);
      ExpectStateOver(partial, BestMissed(read));
    }
  }
}

TEST_F(VerifyHeadTest, AThresholdThatNothingLessReachesReadsEverything) {
  spec_.min_captured_mass = 1;
  const HeadPartial partial = Verify();
  EXPECT_EQ(partial.action, CorrectionAction::kWidened);
  EXPECT_EQ(partial.mass_after, 1);
  const size_t all = recent_ - spec_.sink_tokens - selected_.size();
  EXPECT_EQ(partial.rows_needed, all);
  ExpectStateOver(partial, BestMissed(all));
}

TEST_F(VerifyHeadTest, TheMassOfATopKSavesThePassOverTheKeysUnlessItIsTooSmall) {
  selected_ = TopK();
  mass_of_top_k_ = static_cast<float>(Mass(selected_));
  spec_.correction = Correction::kRemote;
  spec_.min_captured_mass = *mass_of_top_k_ - 0.01f;
  EXPECT_EQ(Verify().action, CorrectionAction::kNone);
  EXPECT_EQ(scratch_.scored_key_bytes, 0u);
  spec_.min_captured_mass = *mass_of_top_k_ + 0.01f;
  const HeadPartial partial = Verify();
  EXPECT_EQ(partial.action, CorrectionAction::kWidened);
  EXPECT_GE(partial.mass_after, spec_.min_captured_mass);
  ExpectStateOver(partial, BestMissed(partial.rows_needed));
}

TEST_F(VerifyHeadTest, NothingIsAddedWhereNothingIsMissed) {
  spec_.correction = Correction::kRemote;
  selected_ = TopK();
  const HeadPartial partial = Verify();
  EXPECT_EQ(partial.action, CorrectionAction::kNone);
  EXPECT_EQ(partial.mass_after, partial.mass_before);
  EXPECT_TRUE(partial.o.empty());
}

TEST_F(VerifyHeadTest, OverflowedQueriesAreCorrectedByEverything) {
  spec_.min_captured_mass = 0.5f;
  std::fill(query_.begin(), query_.end(), NAN);
  const HeadPartial partial = Verify();
  EXPECT_EQ(partial.action, CorrectionAction::kWidened);
  EXPECT_EQ(partial.rows_read, recent_ - spec_.sink_tokens - selected_.size());
}

}  // namespace
}  // namespace winnow::test
