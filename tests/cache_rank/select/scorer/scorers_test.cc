#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "cache_rank/select/host/select_head.h"
#include "common/selection/page_groups.h"
#include "tests/cache_rank/store/stored_keys.h"

// Whole selections by every scorer and policy against their definitions in double.

namespace winnow {
namespace {

using test::Vector;

constexpr uint32_t kSinks = 4;

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Vector Aggregate(GroupAggregation aggregation, const std::vector<Vector>& scores) {
  Vector out(scores[0].size(), aggregation == GroupAggregation::kMax ? -INFINITY : 0);
  for (const Vector& row : scores) {
    double sum = 0, max = *std::max_element(row.begin(), row.end());
    for (double s : row) sum += std::exp(s - max);
    for (size_t j = 0; j < row.size(); ++j) {
      if (aggregation == GroupAggregation::kSoftmaxSum) out[j] += std::exp(row[j] - max) / sum;
      if (aggregation == GroupAggregation::kMax) out[j] = std::max(out[j], row[j]);
      if (aggregation == GroupAggregation::kMean) out[j] += row[j] / static_cast<double>(scores.size());
    }
  }
  return out;
}

struct Case {
  Scorer scorer;
  uint32_t page, physical;
  int group;
  GroupAggregation aggregation = GroupAggregation::kSoftmaxSum;
};

class ScorersTest : public testing::TestWithParam<Case> {
 protected:
  ScorersTest() {
    shape_.layout.num_query_heads = GetParam().group * shape_.layout.num_kv_heads;
    shape_.model.group_size = GetParam().group;
    spec_.scorer = GetParam().scorer;
    spec_.page_tokens = GetParam().page;
    spec_.physical_page_tokens = std::max(GetParam().physical, GetParam().page);
    spec_.group_aggregation = GetParam().aggregation;
    spec_.candidate_factor = 3;
    spec_.min_candidate_tokens = 0;
  }
  IndexLayout Index() const { return IndexLayoutFor(spec_); }
  void DrawQueries(uint64_t seed, float scale = 2) {
    values_.clear();
    queries_.assign(GetParam().group, {});
    for (Vector& q : queries_) {
      for (int d = 0; d < shape_.layout.head_dim; ++d) {
        values_.push_back(scale * test::Noise(seed, values_.size()));
        q.push_back(values_.back());
      }
    }
  }
  HeadQuestion Question(const test::StoredKeys& stored, uint32_t position, uint32_t budget) const {
    return {.spec = &spec_,
            .position = position,
            .budget_tokens = budget,
            .index = stored.kv.index(0, 1),
            .target = values_.data()};
  }
  std::vector<std::vector<uint32_t>> Lists(const HeadQuestion& question, CapturedMassFigure* figure = nullptr) {
    std::vector<std::vector<uint32_t>> lists(ListsPerHead(spec_, shape_.model));
    const CapturedMassFigure mass = SelectHead(kernels_, shape_.model, question, scratch_, lists);
    if (figure != nullptr) *figure = mass;
    return lists;
  }
  std::vector<uint32_t> Select(const HeadQuestion& question, CapturedMassFigure* figure = nullptr) {
    return Lists(question, figure)[0];
  }
  uint32_t End(uint32_t position) const { return RecentStart(position, spec_.recent_tokens, kSinks, kBlockTokens); }

  // Importance of each row below the window by the definition of the scorer.
  Vector RowImportance(const std::vector<Vector>& keys, uint32_t position) const {
    const uint32_t page = spec_.page_tokens, end = End(position);
    std::vector<Vector> scores;
    for (const Vector& q : queries_) {
      scores.emplace_back();
      for (uint32_t p = 0; p + page <= position; p += page) {
        scores.back().push_back(test::PageScoreReference(spec_.scorer == Scorer::kPageCuboid, q, keys, p, page));
      }
    }
    const Vector pages = Aggregate(spec_.group_aggregation, scores);
    const uint32_t unit = spec_.scorer == Scorer::kHierarchical ? spec_.physical_page_tokens : page;
    Vector rows(end);
    for (uint32_t r = 0; r < end; ++r) {
      double best = -INFINITY;
      for (uint32_t p = r / unit * unit; p < (r / unit + 1) * unit; p += page) {
        if (p + page <= end) best = std::max(best, pages[p / page]);
      }
      rows[r] = best == -INFINITY ? 1e30 : best;  // only a page that reaches into the window
    }
    return rows;
  }

  ServedShape shape_ = test::SmallShape(1);
  const KernelTable& kernels_ = *CpuKernels("portable").value();
  SelectionSpec spec_ = test::SmallSpec(Predictor::kExact);
  SelectScratch scratch_;
  std::vector<float> values_;
  std::vector<Vector> queries_;
};

const uint32_t kPositions[] = {150, 191, 192, 223, 224, 256, 319, 600, 1023, 1024, 1060};

class PageScorersTest : public ScorersTest {};

TEST_P(PageScorersTest, TakeTheRowsOfTheMostImportantPages) {
  const test::StoredKeys stored(shape_, 5, 1100, 50, Index());
  for (const uint32_t position : kPositions) {
    for (const uint32_t budget : {1u, 37u, 48u, 96u, 100u}) {
      DrawQueries(position + budget);
      const std::vector<uint32_t> selected = Select(Question(stored, position, budget));
      const uint32_t end = End(position),
                     unit = spec_.scorer == Scorer::kHierarchical ? spec_.physical_page_tokens : spec_.page_tokens;
      const Vector importance = RowImportance(stored.Keys(1, position), position);
      ASSERT_EQ(test::CheckTopK(importance, selected, kSinks, end, std::min(budget, end - kSinks), 1e-4), "")
          << position << " " << budget;
      // Whole pages, but for one that gives its first rows.
      int cut = 0;
      for (uint32_t u = kSinks / unit; u * unit < end; ++u) {
        const uint32_t first = std::max(u * unit, kSinks), last = std::min((u + 1) * unit, end);
        const auto in = [&](uint32_t r) { return std::binary_search(selected.begin(), selected.end(), r); };
        uint32_t count = 0;
        for (uint32_t r = first; r < last; ++r) count += in(r);
        cut += count > 0 && count < last - first;
        for (uint32_t r = first; r < first + count; ++r) EXPECT_TRUE(in(r)) << r;
      }
      EXPECT_LE(cut, 1);
    }
  }
}

TEST_P(PageScorersTest, GiveTiesToTheLowerPosition) {
  const test::StoredKeys stored(shape_, 5, 700, 50, Index(), [](uint32_t) { return 0.0f; });
  DrawQueries(1);
  const std::vector<uint32_t> selected = Select(Question(stored, 671, 70));  // no page reaches into the window
  for (uint32_t i = 0; i < 70; ++i) EXPECT_EQ(selected[i], kSinks + i);
}

constexpr Case kPageCases[] = {
    {Scorer::kPageMinmax, 16, 0, 1},    {Scorer::kPageMinmax, 32, 0, 4, GroupAggregation::kMax},
    {Scorer::kPageMinmax, 64, 0, 5},    {Scorer::kPageCuboid, 16, 0, 5, GroupAggregation::kMean},
    {Scorer::kPageCuboid, 32, 0, 4},    {Scorer::kPageCuboid, 64, 0, 1},
    {Scorer::kHierarchical, 16, 64, 4}, {Scorer::kHierarchical, 32, 64, 1, GroupAggregation::kMax},
    {Scorer::kHierarchical, 64, 64, 5},
};
constexpr Case kTwoStageCases[] = {
    {Scorer::kTwoStage, 16, 0, 4},
    {Scorer::kTwoStage, 16, 0, 1, GroupAggregation::kMax},
    {Scorer::kTwoStage, 32, 0, 5, GroupAggregation::kMean},
    {Scorer::kTwoStage, 64, 0, 5},
};
std::vector<Case> AllCases() {
  std::vector<Case> cases{{Scorer::kToken, 16, 0, 1}, {Scorer::kToken, 16, 0, 5, GroupAggregation::kMean}};
  cases.insert(cases.end(), std::begin(kPageCases), std::end(kPageCases));
  cases.insert(cases.end(), std::begin(kTwoStageCases), std::end(kTwoStageCases));
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Cases, PageScorersTest, testing::ValuesIn(kPageCases));

class TwoStageTest : public ScorersTest {
 protected:
  double BoundOf(const std::vector<Vector>& keys, uint32_t first, uint32_t rows) const {
    double bound = -INFINITY;
    for (const Vector& q : queries_) bound = std::max(bound, test::PageScoreReference(false, q, keys, first, rows));
    return bound;
  }
  // Rows whose groups of pages are left out by the greatest bounds of all their keys.
  std::set<uint32_t> LeftOut(const std::vector<Vector>& keys, uint32_t end, uint32_t budget) const {
    const PageGroups groups = PageGroupsOf(spec_, budget, kSinks, end);
    std::vector<std::pair<double, uint32_t>> order;
    for (uint32_t g = groups.begin; g < groups.end; ++g)
      order.emplace_back(-BoundOf(keys, g * groups.rows, groups.rows), g);
    std::sort(order.begin(), order.end());
    std::set<uint32_t> rows;
    for (size_t i = groups.kept; i < order.size(); ++i) {
      for (uint32_t r = 0; r < groups.rows; ++r) rows.insert(order[i].second * groups.rows + r);
    }
    return rows;
  }
  void CheckCandidates(const test::StoredKeys& stored, uint32_t position, uint32_t budget);
};

void TwoStageTest::CheckCandidates(const test::StoredKeys& stored, uint32_t position, uint32_t budget) {
  const uint32_t page = spec_.page_tokens;
  const std::vector<uint32_t> selected = Select(Question(stored, position, budget));
  const uint32_t end = End(position);
  const std::vector<Vector> keys = stored.Keys(1, position);
  const std::set<uint32_t> left_out = LeftOut(keys, end, budget);
  std::vector<std::pair<double, uint32_t>> order;  // by bound; pages that reach into the window first
  for (uint32_t p = kSinks / page; p * page < end; ++p) {
    if (left_out.contains(p * page)) continue;
    order.emplace_back((p + 1) * page <= end ? -BoundOf(keys, p * page, page) : -INFINITY, p);
  }
  std::sort(order.begin(), order.end());
  std::set<uint32_t> scored;  // rows
  for (uint32_t r = 0; r < position; ++r) {
    // Whole 16-row groups that hold sinks or window, below the last complete group.
    const bool last = r / 16 * 16 + 16 > position;
    if (!last && (r / 16 * 16 < kSinks || r >= end / page * page)) scored.insert(r);
  }
  std::set<uint32_t> candidates;
  for (const auto& [bound, p] : order) {
    if (end - kSinks > 3 * budget && candidates.size() >= 3 * budget) break;
    for (uint32_t r = std::max(p * page, kSinks); r < std::min((p + 1) * page, end); ++r) candidates.insert(r);
  }
  if (end - kSinks <= 3 * budget) {
    for (uint32_t r = 0; r < position; ++r) scored.insert(r);  // every key
  }
  for (uint32_t r : candidates) {
    for (uint32_t g = r / 16 * 16; g < r / 16 * 16 + 16; ++g) scored.insert(g);
  }
  std::vector<Vector> scores;
  const std::vector<uint32_t> columns(scored.begin(), scored.end());
  for (const Vector& q : queries_) {
    scores.emplace_back();
    for (uint32_t r : columns) scores.back().push_back(Dot(q, keys[r]));
  }
  const Vector aggregated = Aggregate(spec_.group_aggregation, scores);
  Vector importance(end, -1e30);
  for (size_t c = 0; c < columns.size(); ++c) {
    if (columns[c] < end && columns[c] >= kSinks) importance[columns[c]] = aggregated[c];
  }
  // What only shares a group with the sinks or the window's page is scored, and selectable too.
  ASSERT_EQ(test::CheckTopK(importance, selected, kSinks, end, std::min(budget, end - kSinks), 1e-4), "")
      << position << " " << budget;
}

TEST_P(TwoStageTest, TakesTheMostImportantRowsOfCandidatePages) {
  const test::StoredKeys stored(shape_, 6, 1100, 50, Index());
  for (const uint32_t position : kPositions) {
    for (const uint32_t budget : {7u, 37u, 48u}) {
      DrawQueries(position + budget);
      CheckCandidates(stored, position, budget);
    }
  }
}

TEST_P(TwoStageTest, LeavesOutGroupsOfPages) {
  const uint32_t group = kGroupPages * spec_.page_tokens;
  const test::StoredKeys stored(shape_, 6, 5 * group + 100, 50, Index());
  spec_.group_candidate_tokens = 1;
  for (const uint32_t position : {2 * group + 50, 3 * group + 127, 4 * group, 5 * group + 99}) {
    DrawQueries(position);
    CheckCandidates(stored, position, 37);
  }
  const std::vector<uint32_t> of_one = Select(Question(stored, 5 * group + 99, 37));
  spec_.group_candidate_tokens = 3 * group;
  const std::vector<uint32_t> of_three = Select(Question(stored, 5 * group + 99, 37));
  EXPECT_NE(of_one, of_three) << "the best rows of some groups that were left out";
  spec_.group_candidate_tokens = 4 * group;
  const std::vector<uint32_t> of_all = Select(Question(stored, 5 * group + 99, 37));
  spec_.group_candidate_tokens = 0;
  EXPECT_EQ(of_all, Select(Question(stored, 5 * group + 99, 37)));
}

TEST_P(TwoStageTest, ScoresEveryKeyOfShortContexts) {
  const test::StoredKeys stored(shape_, 6, 700, 50, Index());
  DrawQueries(3);
  spec_.score_all_below_tokens = 700;
  const std::vector<uint32_t> all = Select(Question(stored, 640, 48));
  spec_.scorer = Scorer::kToken;
  EXPECT_EQ(all, Select(Question(stored, 640, 48)));
}

TEST_P(TwoStageTest, LeavesAtLeastTheLeastCandidates) {
  const test::StoredKeys stored(shape_, 6, 1100, 50, Index());
  DrawQueries(4);
  const auto select = [&](uint32_t factor, uint32_t least, uint32_t budget) {
    spec_.candidate_factor = factor;
    spec_.min_candidate_tokens = least;
    return Select(Question(stored, 1050, budget));
  };
  // 48 budgets of 10 rows are as many candidates as 480 rows, whatever the budget; both are complete pages.
  EXPECT_EQ(select(1, 480, 10), select(48, 0, 10));
  EXPECT_EQ(select(1, 480, 48), select(10, 0, 48));
  EXPECT_EQ(select(10, 64, 48), select(10, 0, 48)) << "the greater of the two";
  EXPECT_NE(select(1, 480, 48), select(1, 0, 48)) << "pages of the greatest bounds hold not all of the best rows";
  const std::vector<uint32_t> all = select(1, 1100, 48);
  spec_.scorer = Scorer::kToken;
  EXPECT_EQ(all, Select(Question(stored, 1050, 48)));
}
INSTANTIATE_TEST_SUITE_P(Cases, TwoStageTest, testing::ValuesIn(kTwoStageCases));

class EveryScorerTest : public ScorersTest {};

TEST_P(EveryScorerTest, GivesEachQueryHeadItsOwnList) {
  const test::StoredKeys stored(shape_, 7, 700, 50, Index());
  for (const Policy policy : {Policy::kTopK, Policy::kMass}) {
    DrawQueries(4);
    spec_.policy = policy;
    spec_.epsilon = 0.2f;
    spec_.list_per = ListPer::kQueryHead;
    HeadQuestion question = Question(stored, 613, 48);
    question.measured = question.target;
    question.measured_position = 613;
    CapturedMassFigure mass;
    const auto lists = Lists(question, &mass);
    ASSERT_EQ(lists.size(), queries_.size());
    SelectionModel single = shape_.model;
    single.group_size = 1;
    double sum = 0;
    for (size_t i = 0; i < lists.size(); ++i) {
      std::vector<uint32_t> alone;
      question.target = question.measured = values_.data() + i * shape_.layout.head_dim;
      sum += SelectHead(kernels_, single, question, scratch_, {&alone, 1}).mass;
      EXPECT_EQ(lists[i], alone) << i;
    }
    EXPECT_NEAR(mass.mass, sum / static_cast<double>(lists.size()), 1e-5);
  }
}

// What no list may be, whatever the keys are.
TEST_P(EveryScorerTest, StaysDefinedWhenKeysAreNotFinite) {
  for (const float odd : {NAN, INFINITY, -INFINITY, 3e38f}) {
    static float value;
    value = odd;
    const test::StoredKeys stored(shape_, 8, 700, 50, Index(), [](uint32_t p) { return p % 97 == 30 ? value : 1.0f; });
    for (const Policy policy : {Policy::kTopK, Policy::kMass}) {
      for (const StopRule rule : {StopRule::kEstimate, StopRule::kBound}) {
        spec_.policy = policy;
        spec_.stop_rule = rule;
        DrawQueries(9);
        HeadQuestion question = Question(stored, 600, 48);
        question.measured = question.target;
        question.measured_position = 600;
        const std::vector<uint32_t> selected = Select(question);
        EXPECT_LE(selected.size(), 48u);
        if (policy == Policy::kTopK) {
          EXPECT_EQ(selected.size(), 48u);
        }
        for (size_t i = 0; i < selected.size(); ++i) {
          EXPECT_GE(selected[i], i == 0 ? kSinks : selected[i - 1] + 1);
          EXPECT_LT(selected[i], End(600));
        }
        EXPECT_EQ(selected, Select(question)) << "the same every time";
      }
    }
  }
}

TEST_P(EveryScorerTest, BoundsCapturedMassFromBelow) {
  const test::StoredKeys stored(shape_, 10, 700, 50, Index());
  for (const uint32_t position : {224u, 413u, 600u, 671u}) {
    for (const bool itself : {false, true}) {
      for (const uint32_t budget : {20u, 48u, 200u}) {
        DrawQueries(position + budget, 1);
        const std::vector<float> target = values_;
        HeadQuestion question = Question(stored, position, budget);
        question.target = target.data();
        std::vector<std::vector<uint32_t>> lists{{}};
        if (!itself) {
          HeadQuestion before = Question(stored, position - 1, budget);
          lists[0] = Select(before);
          DrawQueries(position + budget + 1, 1);
        }
        question.measured = values_.data();
        if (itself) question.measured = question.target;
        question.measured_position = itself ? position : position - 1;
        const std::vector<uint32_t> previous = lists[0];
        const CapturedMassFigure figure = SelectHead(kernels_, shape_.model, question, scratch_, lists);
        const uint32_t measured = question.measured_position;
        const double exact = test::MassReference(queries_, stored.Keys(1, measured + 1), 1, kSinks,
                                                 itself ? lists[0] : previous, End(measured));
        EXPECT_LE(figure.mass, exact + 1e-5);
        EXPECT_GT(figure.mass, 0);
        if (!figure.is_lower_bound) {
          EXPECT_NEAR(figure.mass, exact, 1e-4);
        }
        if (spec_.scorer == Scorer::kToken) {
          EXPECT_FALSE(figure.is_lower_bound);
        }
        std::vector<std::vector<uint32_t>> exactly{previous};
        question.measures_exactly = true;
        const CapturedMassFigure exact_figure = SelectHead(kernels_, shape_.model, question, scratch_, exactly);
        EXPECT_FALSE(exact_figure.is_lower_bound);
        EXPECT_NEAR(exact_figure.mass, exact, 1e-4);
        EXPECT_EQ(exactly, lists);
        std::vector<uint32_t> alone;
        question.measured = nullptr;
        EXPECT_TRUE(std::isnan(SelectHead(kernels_, shape_.model, question, scratch_, {&alone, 1}).mass));
        EXPECT_EQ(alone, lists[0]) << "measuring does not change the selection";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, EveryScorerTest, testing::ValuesIn(AllCases()));

// Selections from a copy of the keys against their definition over that copy. Queries are their own int8.
class KeyCopyTest : public testing::TestWithParam<std::tuple<KeyCopy, Scorer>> {
 protected:
  KeyCopyTest() {
    spec_.key_copy = std::get<KeyCopy>(GetParam());
    spec_.scorer = std::get<Scorer>(GetParam());
    spec_.candidate_factor = 3;
    spec_.min_candidate_tokens = 0;
  }
  void DrawQueries(uint64_t seed) {
    values_.clear();
    queries_.assign(shape_.model.group_size, {});
    for (Vector& q : queries_) {
      for (int d = 0; d < shape_.layout.head_dim; ++d) {
        const float integer = d == 0 ? 127 : std::round(127 * test::Noise(seed, values_.size()));
        values_.push_back(integer / 64);
        q.push_back(values_.back());
      }
    }
  }
  // The first n keys as their tiles have them.
  std::vector<Vector> Copies(const HeadIndex& index, uint32_t n) const {
    const int dim = shape_.layout.head_dim;
    std::vector<Vector> keys(n);
    for (uint32_t j = 0; j < n; ++j) {
      const auto* tile = static_cast<const uint8_t*>(index.keys[j / 32]);
      const bool int4 = index.dtype == Dtype::kI4;
      float scale;
      std::memcpy(&scale, tile + dim * (int4 ? 16 : 32) + j % 32 * 4, 4);
      for (int d = 0; d < dim; ++d) {
        const int value = int4 ? (tile[(d / 8 * 32 + j % 32) * 4 + d % 4] >> (d % 8 < 4 ? 0 : 4)) % 16 - 8
                               : static_cast<int8_t>(tile[(d / 4 * 32 + j % 32) * 4 + d % 4]);
        keys[j].push_back(double{scale} * value);
      }
    }
    return keys;
  }

  const ServedShape shape_ = test::SmallShape(1);
  const KernelTable& kernels_ = *CpuKernels("portable").value();
  SelectionSpec spec_ = test::SmallSpec(Predictor::kExact);
  std::vector<float> values_;
  std::vector<Vector> queries_;
};

TEST_P(KeyCopyTest, SelectsAndMeasuresByTheCopy) {
  const test::StoredKeys stored(shape_, 12, 700, 50, IndexLayoutFor(spec_));
  const HeadIndex index = stored.kv.index(0, 1);
  EXPECT_EQ(index.dtype, spec_.key_copy == KeyCopy::kInt4 ? Dtype::kI4 : Dtype::kI8);
  EXPECT_EQ(index.page_dtype, Dtype::kI8);
  SelectScratch scratch;
  int bounded = 0;
  for (const uint32_t position : {224u, 413u, 600u, 671u}) {
    for (const uint32_t budget : {20u, 48u, 200u}) {
      DrawQueries(position + budget);
      std::vector<uint32_t> selected;
      const CapturedMassFigure figure = SelectHead(kernels_, shape_.model,
                                                   {.spec = &spec_,
                                                    .position = position,
                                                    .budget_tokens = budget,
                                                    .index = index,
                                                    .target = values_.data(),
                                                    .measured = values_.data(),
                                                    .measured_position = position},
                                                   scratch, {&selected, 1});
      const std::vector<Vector> keys = Copies(index, position + 1);
      const uint32_t end = RecentStart(position, spec_.recent_tokens, kSinks, kBlockTokens);
      const double mass = test::MassReference(queries_, keys, 1, kSinks, selected, end);
      EXPECT_LE(figure.mass, mass + 1e-5);
      EXPECT_GT(figure.mass, 0);
      if (!figure.is_lower_bound) {
        EXPECT_NEAR(figure.mass, mass, 1e-4);
      }
      bounded += figure.is_lower_bound;
      if (spec_.scorer != Scorer::kToken) continue;
      const Vector importance = test::ImportanceReference(GroupAggregation::kSoftmaxSum, queries_,
                                                          {keys.begin(), keys.begin() + position}, 1);
      EXPECT_EQ(test::CheckTopK(importance, selected, kSinks, end, std::min(budget, end - kSinks), 1e-4), "");
    }
  }
  EXPECT_EQ(bounded > 0, spec_.scorer != Scorer::kToken);
}

INSTANTIATE_TEST_SUITE_P(Copies, KeyCopyTest,
                         testing::Combine(testing::Values(KeyCopy::kInt8, KeyCopy::kInt4),
                                          testing::Values(Scorer::kToken, Scorer::kTwoStage, Scorer::kPageMinmax)));

}  // namespace
}  // namespace winnow
