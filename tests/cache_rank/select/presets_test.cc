// What defines each preset, as an inference rank sees it: through a cache rank's data plane, against brute force.
#include <cctype>

#include "common/selection/head_profile.h"
#include "common/selection/validate.h"
#include "tests/cache_rank/select/preset_fixture.h"

namespace winnow::test {
namespace {

using WinnowPreset = PresetTest;
using AsyncTokenPreset = PresetTest;
using ExactTokenPreset = PresetTest;
using SparseservePreset = PresetTest;
using HisparsePreset = PresetTest;
using LservePreset = PresetTest;
using QuestPreset = PresetTest;
using FixedPreset = PresetTest;
using DensePreset = PresetTest;

TEST(Presets, EachHasATestOfItsName) {
  std::set<std::string> suites;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) suites.insert(all.GetTestSuite(i)->name());
  for (const SelectionPreset& preset : SelectionPresets()) {
    std::string suite;
    bool upper = true;
    for (const char c : preset.spec.preset) {
      if (c != '-') suite += static_cast<char>(upper ? std::toupper(c) : c);
      upper = c == '-';
    }
    EXPECT_EQ(suites.count(suite + "Preset"), 1u) << suite;
  }
}

// A prediction that has nothing to do with the real query, so that nothing else can give the selections.
std::vector<float> UnlikelyPrediction(uint64_t, int layer, uint32_t position) {
  std::vector<float> values;
  for (int i = 0; i < 4 * 16; ++i) values.push_back(2 * Noise(77, layer, position, i));
  return values;
}

// Presets that are served with it.
class PredictedTest : public PresetTest {
 protected:
  std::vector<Vector> PredictedQueries(const SelectedList& list) const {
    if (list.layer == 0) return RealQueries(list);
    return Rotated(QueriesOf(UnlikelyPrediction(sequence_->seed, list.layer, list.position), list.head), list.position);
  }
};
using DepthPreset = PredictedTest;

TEST_F(DepthPreset, SelectsWithWhatWasSentALayerEarlierAndWaitsForNoOtherQueryThanTheFirstLayers) {
  Serve(Preset("depth"), kPrompt, {.data_plane = {}, .prediction = UnlikelyPrediction});
  ASSERT_EQ(sequence_->spec.lookahead, 1u);
  for (int step = 0; step < 5; ++step) {
    rank_->SendPlan({sequence_});
    EXPECT_FALSE(DeltasCome(0)) << "the first layer has nothing before it";
    for (int layer = 0; layer < num_layers(); ++layer) {
      rank_->SendLayer(layer);
      EXPECT_TRUE(DeltasCome(layer));
      if (layer + 1 < num_layers()) {
        EXPECT_TRUE(DeltasCome(layer + 1)) << "before anything of that layer";
      }
      if (layer + 2 < num_layers()) {
        EXPECT_FALSE(DeltasCome(layer + 2));
      }
    }
    EndStep();
  }
  ForEachSelection([&](const SelectedList& list) { EXPECT_EQ(CheckBestRows(PredictedQueries(list), list), ""); });
}

TEST_F(WinnowPreset, TakesTheFewestRowsThatHoldTheMassOfTheRealQueries) {
  Serve(Preset("winnow", 150), kPrompt, {.data_plane = {}, .prediction = UnlikelyPrediction});
  const SelectionSpec& spec = sequence_->spec;
  Decode(8);
  // Scores come from keys in 8 bits: exact ones differ by up to a few percent of a weight.
  constexpr double kTolerance = 0.05, kMassTolerance = 0.005;
  std::set<size_t> sizes;
  ForEachSelection([&](const SelectedList& list) {
    const std::vector<Vector> queries = RealQueries(list);
    const std::vector<Vector> keys = Keys(list.layer, list.head, list.position);
    const Vector importance = ImportanceReference(GroupAggregation::kSoftmaxSum, queries, keys, scale());
    const uint32_t window = sequence_->Window(list.position), count = static_cast<uint32_t>(list.rows.size());
    EXPECT_EQ(CheckTopK(importance, list.rows, spec.sink_tokens, window, count, kTolerance), "");
    EXPECT_LE(count, spec.budget_tokens);
    const auto mass = [&](const std::vector<uint32_t>& rows) {
      return MassReference(queries, keys, scale(), spec.sink_tokens, rows, window);
    };
    if (count < spec.budget_tokens) {
      EXPECT_GE(mass(list.rows), 1 - spec.epsilon - kMassTolerance);
    }
    ASSERT_GT(count, 0u);
    std::vector<uint32_t> fewer = list.rows;
    fewer.erase(std::min_element(fewer.begin(), fewer.end(),
                                 [&](uint32_t a, uint32_t b) { return importance[a] < importance[b]; }));
    EXPECT_LT(mass(fewer), 1 - spec.epsilon + kMassTolerance);
    sizes.insert(count);
  });
  EXPECT_GT(sizes.size(), 4u) << "heads and positions differ in what they need";
}

TEST_F(AsyncTokenPreset, NeverWaitsForTheCurrentQuery) {
  SelectionSpec spec = Preset("async-token");
  spec.key_copy = KeyCopy::kNone;  // the reference ranks exact scores
  Serve(spec);
  for (int step = 0; step < 12; ++step) {
    rank_->SendPlan({sequence_});
    for (int layer = 0; layer < num_layers(); ++layer) {
      ASSERT_TRUE(DeltasCome(layer)) << "position " << sequence_->next_position << ": none of its queries was sent";
    }
    for (int layer = 0; layer < num_layers(); ++layer) rank_->SendLayer(layer);
    EndStep();
  }
  ForEachSelection([&](const SelectedList& list) {
    // Queries p-9 .. p-1 as attention used them; the newest regressed on those before it, the weights moved by one.
    std::vector<std::vector<Vector>> past;  // [query head][age]
    for (uint32_t p = list.position - 9; p < list.position; ++p) {
      const std::vector<Vector> queries = RealQueries(p, list.layer, list.head);
      past.resize(queries.size());
      for (size_t g = 0; g < queries.size(); ++g) past[g].push_back(queries[g]);
    }
    std::vector<Vector> predicted;
    for (const auto& queries : past) predicted.push_back(RegressReference(TemporalVariant::kSoftmax, queries));
    EXPECT_EQ(CheckBestRows(predicted, list), "");
  });
}

TEST_F(ExactTokenPreset, SelectsTheBestRowsForTheRealQueryAndWaitsForItInEveryLayer) {
  Serve(Preset("exact-token"));
  for (int step = 0; step < 12; ++step) {
    rank_->SendPlan({sequence_});
    for (int layer = 0; layer < num_layers(); ++layer) {
      EXPECT_FALSE(DeltasCome(layer));
      rank_->SendLayer(layer);
      ASSERT_TRUE(DeltasCome(layer));
    }
    EndStep();
  }
  ForEachSelection([&](const SelectedList& list) { EXPECT_EQ(CheckBestRows(RealQueries(list), list), ""); });
}

TEST_F(SparseservePreset, SelectsWholePagesOf32TokensByCuboidMean) {
  Serve(Preset("sparseserve"));
  Decode(40);
  ForEachSelection([&](const SelectedList& list) {
    EXPECT_EQ(CheckBestUnits(UnitImportance(/*cuboid=*/true, 32, 32, list), 32, list), "");
  });
}

TEST_F(HisparsePreset, KeepsThreeBudgetsResidentAndEvictsWhatWasSelectedLongestAgo) {
  constexpr uint32_t kBudget = 24, kPool = 3 * kBudget;
  Serve(Preset("hisparse", kBudget));
  std::vector<std::map<uint32_t, uint32_t>> last_use(sequence_->lists.size());  // [list]: position -> when selected
  const auto resident = [&](size_t list) {
    std::set<uint32_t> positions;
    const FakeSequence::List& held = sequence_->lists[list];
    for (const auto& [index, row] : held.pool) positions.insert(held.position_of.at({row[0], row[1]}));
    return positions;
  };
  int evictions = 0;
  uint64_t missing = 0;
  for (int step = 0; step < 60; ++step) {
    std::vector<std::set<uint32_t>> before;
    for (size_t list = 0; list < sequence_->lists.size(); ++list) before.push_back(resident(list));
    Decode(1);
    const uint32_t position = sequence_->next_position - 1;
    for (size_t list = 0; list < sequence_->lists.size(); ++list) {
      ASSERT_EQ(sequence_->Pool(list), kPool);
      const std::vector<uint32_t>& selected = sequence_->selections[position][list];
      uint32_t oldest_kept = position;
      for (const uint32_t row : selected) missing += before[list].count(row) == 0;
      for (const uint32_t row : selected) last_use[list][row] = position;
      const std::set<uint32_t> after = resident(list);
      for (const uint32_t row : after) oldest_kept = std::min(oldest_kept, last_use[list].at(row));
      for (const uint32_t row : before[list]) {
        if (after.count(row) == 1) continue;
        ++evictions;
        EXPECT_LE(last_use[list].at(row), oldest_kept);
        EXPECT_EQ(after.size(), kPool) << "only a full pool loses rows";
      }
    }
  }
  EXPECT_GT(evictions, 1000);
  EXPECT_EQ(sequence_->streamed_rows + sequence_->local_rows, missing)
      << "what was selected lately need not come again";
  ForEachSelection([&](const SelectedList& list) { EXPECT_EQ(CheckBestRows(RealQueries(list), list), ""); });
}

// Of six heads these stream: both of the second layer, one of the third.
HeadProfile HalfStreaming() {
  HeadProfile profile{.num_layers = 3, .num_kv_heads = 2};
  profile.heads.resize(6);
  for (const size_t list : {2, 3, 5}) profile.heads[list].streaming = true;
  return profile;
}

TEST_F(LservePreset, TouchesTheSelectorAtEveryFourthStepAndNeverForStreamingHeads) {
  constexpr uint32_t kLongPrompt = 901;
  SelectionSpec spec = WithHeadProfile(Preset("lserve", 192), HalfStreaming());
  if (absl::IsUnimplemented(ValidateSelection(spec))) spec.list_per = ListPer::kKvHead;
  ASSERT_TRUE(ValidateSelection(spec).ok());
  ASSERT_EQ(spec.sink_tokens, 128u);
  ASSERT_EQ(spec.recent_tokens, 256u);
  Serve(spec, kLongPrompt);
  Decode(24);
  // The answer's first position, and those that four divides.
  const std::set<uint32_t> anchors = {901, 904, 908, 912, 916, 920, 924};
  std::set<uint32_t> with_delta;
  for (const auto& [position, list] : sequence_->deltas) with_delta.insert(position);
  EXPECT_EQ(with_delta, anchors);
  EXPECT_EQ(cluster_->metrics.Snapshot().selections, 2 * anchors.size()) << "in the layers that do not stream";

  std::map<std::tuple<int, int, int>, std::vector<uint32_t>> newest;
  ForEachSelection([&](const SelectedList& list) {
    if (list.layer == 1 || (list.layer == 2 && list.head == 1)) {
      EXPECT_EQ(list.rows, std::vector<uint32_t>()) << "a streaming head";
      return;
    }
    std::vector<uint32_t>& of_anchor = newest[{list.layer, list.head, list.query_head}];
    if (anchors.count(list.position) == 0) {
      EXPECT_EQ(list.rows, of_anchor);
      return;
    }
    of_anchor = list.rows;
    EXPECT_EQ(CheckBestUnits(UnitImportance(/*cuboid=*/false, 16, 64, list), 64, list), "");
  });
}

TEST_F(LservePreset, KeepsNoRowsOfStreamingHeadsBetweenSinksAndRecentWindow) {
  constexpr uint32_t kLongPrompt = 1600;
  SelectionSpec spec = Preset("lserve", 192);
  if (absl::IsUnimplemented(ValidateSelection(spec))) spec.list_per = ListPer::kKvHead;
  Serve(spec, kLongPrompt);
  Decode(4);
  const size_t all = cluster_->data_plane->blocks().used();
  Serve(WithHeadProfile(spec, HalfStreaming()), kLongPrompt);
  Decode(4);
  // Blocks of 32 rows: sinks take 4, ring and slack behind it at most 256 + 160 rows, so 13 and one begun.
  EXPECT_LE(cluster_->data_plane->blocks().used(), all / 2 + 3 * (4 + 14));
}

class PsaTest : public PresetTest {
 protected:
  static constexpr uint32_t kMost = 200;  // rows; below that the policy has stopped by itself
  // Spread such that few rows hold most of the mass.
  static float Spiky(uint32_t position) { return position % 83 == 40 ? 4.0f : 0.2f; }

  // Algorithm 1 for one head: units in the order of their importance, until what is held, over that and as much for
  // each unit not read as the least unit so far holds, reaches 1 - epsilon.
  std::vector<uint32_t> AlgorithmOne(const SelectedList& list) const {
    const SelectionSpec& spec = sequence_->spec;
    const uint32_t window = sequence_->Window(list.position);
    const std::vector<Vector> keys = Keys(list.layer, list.head, list.position), queries = RealQueries(list);
    const auto mass = [&](const Vector& q, uint32_t first, uint32_t last) {
      double sum = 0;
      for (uint32_t r = first; r < last; ++r) {
        sum += std::exp(scale() * std::inner_product(q.begin(), q.end(), keys[r].begin(), 0.0));
      }
      return sum;
    };
    const Vector importance = UnitImportance(/*cuboid=*/true, 32, 32, list);
    std::vector<uint32_t> order(importance.size()), selected;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return importance[a] > importance[b]; });
    Vector held, least(queries.size(), INFINITY);
    for (const Vector& q : queries) held.push_back(mass(q, 0, spec.sink_tokens) + mass(q, window, list.position));
    for (size_t read = 0; read < order.size(); ++read) {
      const uint32_t first = std::max(order[read] * 32, spec.sink_tokens),
                     last = std::min(order[read] * 32 + 32, window);
      for (uint32_t r = first; r < last && selected.size() < spec.budget_tokens; ++r) selected.push_back(r);
      double share = 0;
      for (size_t i = 0; i < queries.size(); ++i) {
        const double page = mass(queries[i], first, last);
        held[i] += page;
        least[i] = std::min(least[i], page);
        const double left = least[i] * static_cast<double>(order.size() - 1 - read);
        share += held[i] / (held[i] + left) / static_cast<double>(queries.size());
      }
      if (share >= 1 - spec.epsilon || selected.size() == spec.budget_tokens) break;
    }
    std::sort(selected.begin(), selected.end());
    return selected;
  }
};
using PsaPreset = PsaTest;

TEST_F(PsaPreset, ReadsPagesInTheOrderOfTheirScoresUntilAlgorithmOneStopsIt) {
  Serve(Preset("psa", kMost), kPrompt, {.data_plane = {}, .row_scale = Spiky});
  Decode(30);
  int stopped = 0;
  ForEachSelection([&](const SelectedList& list) {
    EXPECT_EQ(list.rows, AlgorithmOne(list));
    stopped += list.rows.size() < kMost;
  });
  EXPECT_GT(stopped, 100) << "it must have something to stop for";
}

TEST_F(PsaPreset, NeverMissesMoreThanEpsilonUnderTheTrueBound) {
  for (const float epsilon : {0.05f, 0.02f}) {
    SelectionSpec spec = Preset("psa", kMost);
    spec.stop_rule = StopRule::kBound;
    spec.epsilon = epsilon;
    Serve(spec, kPrompt, {.data_plane = {}, .row_scale = Spiky});
    Decode(30);
    int stopped = 0;
    ForEachSelection([&](const SelectedList& list) {
      if (list.rows.size() == kMost) return;
      ++stopped;
      EXPECT_GE(cluster_->Mass(*sequence_, list.position, list.layer, list.head, list.rows), 1 - epsilon - 1e-5);
    });
    EXPECT_GT(stopped, 50) << "it must not read everything";
  }
}

TEST_F(QuestPreset, ReadsTheBoundsOfPagesAloneAndSelectsWholePagesOf16Tokens) {
  Serve(Preset("quest"));
  Decode(40);
  const KvLayout& layout = cluster_->shape.layout;
  uint64_t bound_bytes = 0;
  for (uint32_t p = kPrompt; p < kPrompt + 40; ++p) {
    bound_bytes += p / 16 * 2 * layout.head_dim * sizeof(float) * layout.num_lists();
  }
  EXPECT_EQ(cluster_->metrics.Snapshot().scored_key_bytes, bound_bytes) << "a minimum and a maximum of each page";
  ForEachSelection([&](const SelectedList& list) {
    EXPECT_EQ(CheckBestUnits(UnitImportance(/*cuboid=*/false, 16, 16, list), 16, list), "");
  });
}

TEST_F(FixedPreset, SendsNoDeltaAfterTheFirstAndScoresNothing) {
  Serve(Preset("fixed"));
  Decode(40);
  std::set<std::pair<uint32_t, size_t>> first;
  for (size_t list = 0; list < sequence_->lists.size(); ++list) first.insert({kPrompt, list});
  EXPECT_EQ(sequence_->deltas, first);
  EXPECT_EQ(sequence_->streamed_rows, 96 * sequence_->lists.size());
  EXPECT_EQ(cluster_->metrics.Snapshot().selections, 0u);
  EXPECT_EQ(cluster_->metrics.Snapshot().scored_key_bytes, 0u);
  std::vector<uint32_t> rows(96);
  std::iota(rows.begin(), rows.end(), sequence_->spec.sink_tokens);
  ForEachSelection([&](const SelectedList& list) { EXPECT_EQ(list.rows, rows); });
}

TEST_F(DensePreset, NeverSelectsAndHasEveryRowAttended) {
  Serve(FindPreset("dense").value());
  Decode(20);
  EXPECT_EQ(rank_->delta_frames, 0u);
  EXPECT_EQ(cluster_->metrics.Snapshot().selections, 0u);
  for (size_t list = 0; list < sequence_->lists.size(); ++list) {
    EXPECT_TRUE(sequence_->Everything(list, kPrompt + 19));
    EXPECT_GE(sequence_->Pool(list), sequence_->Window(kPrompt + 99) - sequence_->spec.sink_tokens) << "room for all";
  }
  // Another inference rank that goes on with it gets every row before it does.
  auto successor = cluster_->NewRank();
  FakeSequence* after = successor->Attach(*sequence_);
  EXPECT_EQ(after->next_position, kPrompt + 20);
  EXPECT_EQ(after->refilled.size(), kPrompt + 20);
  ASSERT_TRUE(successor->Decode({after}));
  EXPECT_EQ(successor->delta_frames, 0u);
}

}  // namespace
}  // namespace winnow::test
