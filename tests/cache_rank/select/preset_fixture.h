#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/selection/presets.h"
#include "tests/cache_rank/fake_rank.h"

namespace winnow::test {

inline constexpr uint32_t kPrompt = 300;

// The preset itself, but for a budget that leaves something to choose among a few hundred rows.
inline SelectionSpec Preset(std::string_view name, uint32_t budget_tokens = 96) {
  SelectionSpec spec = FindPreset(name).value();
  spec.budget_tokens = budget_tokens;
  return spec;
}

// One sequence of a preset, served by a cache rank's data plane a position or a layer at a time, and what its
// selections should be by brute force.
class PresetTest : public testing::Test {
 protected:
  void Serve(const SelectionSpec& spec, uint32_t prompt_tokens = kPrompt, TestCluster::Options options = {}) {
    options.data_plane = TestCluster::SmallDataPlane();
    options.data_plane.selector.measure_captured_mass = false;  // so that what is read is read to select
    ExpectNoErrors();
    rank_ = nullptr;
    cluster_ = std::make_unique<TestCluster>(options);
    rank_ = cluster_->NewRank();
    sequence_ = rank_->Prefill(1, /*seed=*/31, spec, prompt_tokens, /*max_positions=*/prompt_tokens + 100);
  }
  void TearDown() override { ExpectNoErrors(); }
  // Of the data plane's protocol.
  void ExpectNoErrors() const {
    if (rank_ == nullptr) return;
    for (const std::string& error : rank_->errors) ADD_FAILURE() << error;
  }
  void Decode(int steps) {
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(rank_->Decode({sequence_})) << "position " << sequence_->next_position;
  }

  int num_layers() const { return cluster_->shape.layout.num_layers; }
  // Whether the deltas of a layer come with what has been sent so far.
  bool DeltasCome(int layer) {
    return cluster_->PumpUntil(*rank_, [&] { return rank_->DeltasComplete(layer); });
  }
  void EndStep() {
    const uint32_t position = sequence_->next_position;
    ASSERT_TRUE(cluster_->PumpUntil(*rank_, [&] { return rank_->watermarks[sequence_->id] > position; }));
    rank_->FinishPlan();
  }

  // A selected list: that of a kv head, or, where they have their own, of one of its query heads.
  struct SelectedList {
    uint32_t position;
    int layer, head;
    int query_head;  // in the group; -1: they share the list
    const std::vector<uint32_t>& rows;
  };
  // Calls check(const SelectedList&) for every list so far.
  template <typename Check>
  void ForEachSelection(Check check) const {
    const int heads = cluster_->shape.layout.num_kv_heads;
    ASSERT_FALSE(sequence_->selections.empty());
    for (const auto& [position, lists] : sequence_->selections) {
      const int per_head = static_cast<int>(lists.size() / sequence_->lists.size());
      for (int list = 0; list < static_cast<int>(lists.size()); ++list) {
        SCOPED_TRACE(absl::StrCat("position ", position, " list ", list));
        const int head = list / per_head;
        check(SelectedList{position, head / heads, head % heads, per_head == 1 ? -1 : list % per_head, lists[list]});
      }
    }
  }
  std::vector<Vector> Keys(int layer, int head, uint32_t count) const {
    std::vector<Vector> keys;
    for (uint32_t p = 0; p < count; ++p) {
      const std::vector<float> row = cluster_->TruthRow(sequence_->seed, layer, head, p);
      keys.emplace_back(row.begin(), row.begin() + cluster_->shape.layout.head_dim);
    }
    return keys;
  }
  // The queries of a kv head's group in `values`, those of all heads, as they are.
  std::vector<Vector> QueriesOf(const std::vector<float>& values, int head) const {
    const int dim = cluster_->shape.layout.head_dim, group = cluster_->shape.layout.group_size();
    std::vector<Vector> queries;
    for (int g = 0; g < group; ++g) {
      const auto begin = values.begin() + (head * group + g) * dim;
      queries.emplace_back(begin, begin + dim);
    }
    return queries;
  }
  // The same at a position.
  std::vector<Vector> Rotated(std::vector<Vector> queries, uint32_t position) const {
    for (Vector& q : queries) q = RotateReference(q, position, cluster_->shape.model.rope);
    return queries;
  }
  std::vector<Vector> RealQueries(uint32_t position, int layer, int head) const {
    return Rotated(QueriesOf(cluster_->TruthQuery(sequence_->seed, layer, position), head), position);
  }
  // Those that the list is for.
  std::vector<Vector> RealQueries(const SelectedList& list) const {
    const std::vector<Vector> group = RealQueries(list.position, list.layer, list.head);
    return list.query_head < 0 ? group : std::vector<Vector>{group[list.query_head]};
  }
  double scale() const { return cluster_->shape.model.attention_scale; }

  // What is wrong with a list as the best rows for some queries.
  std::string CheckBestRows(const std::vector<Vector>& queries, const SelectedList& list) const {
    const SelectionSpec& spec = sequence_->spec;
    const Vector importance = ImportanceReference(GroupAggregation::kSoftmaxSum, queries,
                                                  Keys(list.layer, list.head, list.position), scale());
    return CheckTopK(importance, list.rows, spec.sink_tokens, sequence_->Window(list.position), spec.budget_tokens,
                     2e-3);
  }

  // Importance of the units of `unit` rows below the recent window: that of a unit's best page. Pages are weighed by
  // the softmax of their scores over all complete pages, summed over the list's real queries.
  Vector UnitImportance(bool cuboid, uint32_t page, uint32_t unit, const SelectedList& list) const {
    const std::vector<Vector> keys = Keys(list.layer, list.head, list.position);
    Vector pages(list.position / page);
    for (const Vector& q : RealQueries(list)) {
      Vector weights;
      for (uint32_t i = 0; i < pages.size(); ++i) {
        weights.push_back(std::exp(scale() * PageScoreReference(cuboid, q, keys, i * page, page)));
      }
      const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (size_t i = 0; i < pages.size(); ++i) pages[i] += weights[i] / sum;
    }
    const uint32_t window = sequence_->Window(list.position);
    Vector units((window + unit - 1) / unit);
    for (uint32_t i = 0; (i + 1) * page <= window; ++i) {
      units[i * page / unit] = std::max(units[i * page / unit], pages[i]);
    }
    return units;
  }
  // What is wrong with a list as the rows of the best units, whole but for the one that meets the budget, which gives
  // its first rows.
  std::string CheckBestUnits(const Vector& units, uint32_t unit, const SelectedList& list) const {
    const uint32_t sinks = sequence_->spec.sink_tokens, window = sequence_->Window(list.position);
    Vector rows;
    for (uint32_t r = 0; r < window; ++r) rows.push_back(units[r / unit]);
    int cut = 0;
    for (uint32_t first = sinks / unit * unit; first < window; first += unit) {
      const uint32_t begin = std::max(first, sinks), end = std::min(first + unit, window);
      const auto from = std::lower_bound(list.rows.begin(), list.rows.end(), begin);
      const auto count = static_cast<uint32_t>(std::lower_bound(from, list.rows.end(), end) - from);
      if (count > 0 && from[count - 1] != begin + count - 1) return absl::StrCat("no page from ", begin, " on");
      cut += count > 0 && count < end - begin;
    }
    if (cut > 1) return absl::StrCat(cut, " pages are cut");
    return CheckTopK(rows, list.rows, sinks, window, sequence_->spec.budget_tokens, 2e-3);
  }

  std::unique_ptr<TestCluster> cluster_;
  std::unique_ptr<FakeRank> rank_;
  FakeSequence* sequence_ = nullptr;
};

}  // namespace winnow::test
