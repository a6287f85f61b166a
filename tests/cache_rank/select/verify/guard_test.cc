// Verifications and corrections of whole sequences, as an inference rank receives them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/cache_rank/fake_rank.h"

namespace winnow::test {
namespace {

struct Case {
  std::string name;
  SelectionSpec spec;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

// Budgets that may grow to 96 rows, which is what a FakeSequence grants.
SelectionSpec Guarded(Predictor predictor, float min_captured_mass, Correction correction) {
  SelectionSpec spec = SmallSpec(predictor);
  spec.min_captured_mass = min_captured_mass;
  spec.correction = correction;
  spec.budget_growth = 2;
  return spec;
}
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const auto& [name, predictor] : {std::pair<std::string, Predictor>{"exact", Predictor::kExact},
                                        {"last", Predictor::kLast},
                                        {"temporal", Predictor::kTemporal},
                                        {"depth", Predictor::kDepth}}) {
    cases.push_back({name + "_remote", Guarded(predictor, 0, Correction::kRemote)});
    cases.push_back({name + "_guarded", Guarded(predictor, 0.985f, Correction::kNone)});
    cases.push_back({name + "_both", Guarded(predictor, 0.98f, Correction::kRemote)});
  }
  // Selections that are reused: of the two anchors that follow the prompt one is no multiple of the interval.
  for (const auto& [name, predictor] : {std::pair<std::string, Predictor>{"exact", Predictor::kExact},
                                        {"temporal", Predictor::kTemporal},
                                        {"depth", Predictor::kDepth}}) {
    cases.push_back({name + "_reuse_guarded", Guarded(predictor, 0.985f, Correction::kNone)});
    cases.back().spec.reuse_interval = 4;
    cases.push_back({name + "_reuse_remote", Guarded(predictor, 0, Correction::kRemote)});
    cases.back().spec.reuse_interval = 4;
  }
  SelectionSpec mean = Guarded(Predictor::kDepth, 0.98f, Correction::kRemote);
  mean.group_aggregation = GroupAggregation::kMean;
  cases.push_back({"depth_mean", mean});
  return cases;
}

class GuardTest : public testing::TestWithParam<Case> {
 protected:
  const SelectionSpec spec_ = GetParam().spec;
  // Angles of up to 400 rad in f32 move scores by about 1e-4, and a state by as much.
  static constexpr double kTolerance = 2e-3;

  struct Served {
    std::map<uint32_t, std::vector<std::vector<uint32_t>>> selections;
    std::map<uint32_t, std::map<size_t, FakeSequence::Verification>> verifications;
  };
  static Served Of(const FakeSequence& sequence) { return {sequence.selections, sequence.verifications}; }
  Served Baseline(uint64_t seed, uint32_t prompt, int steps) const {
    TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
    auto rank = cluster.NewRank();
    FakeSequence* sequence = rank->Prefill(1, seed, spec_, prompt);
    for (int i = 0; i < steps; ++i) EXPECT_TRUE(rank->Decode({sequence}));
    EXPECT_EQ(rank->Errors(), "");
    EXPECT_EQ(sequence->verifications.size(), static_cast<size_t>(steps));
    return Of(*sequence);
  }
  static void ExpectServedAlike(const FakeSequence& sequence, const Served& expected) {
    for (const auto& [position, lists] : sequence.selections) {
      ASSERT_EQ(lists, expected.selections.at(position)) << position;
      ASSERT_TRUE(sequence.verifications.at(position) == expected.verifications.at(position)) << position;
    }
  }
};

// State of the real queries over rows, and the attention over them, in double.
struct State {
  std::vector<Vector> o;
  Vector lse;
};
State AttendReference(const TestCluster& cluster, const FakeSequence& sequence, uint32_t position, int layer, int head,
                      const std::vector<uint32_t>& rows) {
  const int dim = cluster.shape.layout.head_dim;
  State state;
  for (const Vector& q : cluster.RealQueries(sequence, position, layer, head)) {
    Vector o(dim);
    double sum = 0;
    for (const uint32_t row : rows) {
      const std::vector<float> kv = cluster.TruthRow(sequence.seed, layer, head, row);
      double score = 0;
      for (int d = 0; d < dim; ++d) score += q[d] * kv[d];
      const double weight = std::exp(cluster.shape.model.attention_scale * score);
      sum += weight;
      for (int d = 0; d < dim; ++d) o[d] += weight * kv[dim + d];
    }
    for (double& x : o) x /= sum;
    state.o.push_back(o);
    state.lse.push_back(std::log(sum));
  }
  return state;
}

TEST_P(GuardTest, EveryVerificationEqualsBruteForceAtEveryPositionLayerAndHead) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  FakeSequence* sequence = rank->Prefill(1, 11, spec_, 300);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(rank->Decode({sequence})) << i << ": " << rank->Errors();
  ASSERT_EQ(rank->Errors(), "");
  const int heads = cluster.shape.layout.num_kv_heads, dim = cluster.shape.layout.head_dim;
  const float wanted = spec_.min_captured_mass;
  std::map<uint16_t, int> actions;
  uint64_t rows_read = 0;
  bool grew = false;
  for (const auto& [position, lists] : sequence->selections) {
    for (size_t list = 0; list < lists.size(); ++list) {
      SCOPED_TRACE(testing::Message() << "position " << position << " list " << list);
      const int layer = static_cast<int>(list) / heads, head = static_cast<int>(list) % heads;
      const std::vector<uint32_t>& selected = lists[list];
      const FakeSequence::Verification& verification = sequence->verifications.at(position).at(list);
      const uint32_t recent = sequence->Window(position);
      const uint32_t budget = static_cast<uint32_t>(selected.size());
      ASSERT_TRUE(budget == 48 || (wanted > 0 && budget == std::min(96u, recent - 4)));
      grew |= budget > 48;
      // The true top-k, up to ties within rounding.
      const Vector importance = cluster.RealImportance(*sequence, position, layer, head);
      std::vector<uint32_t> order;
      for (uint32_t j = spec_.sink_tokens; j < recent; ++j) order.push_back(j);
      std::stable_sort(order.begin(), order.end(),
                       [&](uint32_t a, uint32_t b) { return importance[a] > importance[b]; });
      const std::vector<uint32_t> top_k(order.begin(), order.begin() + budget);
      // What A lacks, best first, and how many of those are of the top-k.
      std::vector<uint32_t> missed;
      size_t missed_top_k = 0;
      for (size_t i = 0; i < order.size(); ++i) {
        if (std::binary_search(selected.begin(), selected.end(), order[i])) continue;
        missed.push_back(order[i]);
        missed_top_k += i < budget;
      }
      const auto with = [&](size_t count) {
        std::vector<uint32_t> rows = selected;
        rows.insert(rows.end(), missed.begin(), missed.begin() + static_cast<int64_t>(count));
        return rows;
      };
      const auto mass = [&, position = position](size_t count) {
        return cluster.Mass(*sequence, position, layer, head, with(count));
      };
      const double before = mass(0);
      EXPECT_NEAR(verification.entry.mass_before, before, kTolerance);
      const double oracle = cluster.Mass(*sequence, position, layer, head, top_k);
      if (spec_.correction == Correction::kRemote) {
        EXPECT_GE(verification.entry.mass_after, oracle - kTolerance);
      }
      if (wanted > 0) {
        EXPECT_GE(verification.entry.mass_after, wanted);
      }
      if (wanted > 0 && std::abs(before - wanted) < kTolerance) continue;  // rounding decides
      const size_t read = verification.entry.rows_read;
      const size_t least = spec_.correction == Correction::kRemote ? missed_top_k : 0;
      ASSERT_LE(read, missed.size());
      EXPECT_GE(read, least);
      if (before < wanted) {
        // Enough, and with a row less it would not be.
        EXPECT_GT(read, 0u);
        EXPECT_GE(mass(read), wanted - kTolerance);
        if (read > least) {
          EXPECT_LT(mass(read - 1), wanted + kTolerance);
        }
      } else {
        EXPECT_EQ(read, least);
      }
      EXPECT_EQ(verification.entry.flags, read == 0             ? 0
                                          : read > missed_top_k ? wire::kPartialWidened
                                                                : wire::kPartialMissedTopK);
      EXPECT_NEAR(verification.entry.mass_after, mass(read), kTolerance);
      ++actions[verification.entry.flags];
      rows_read += read;
      std::vector<uint32_t> attended = with(read);
      // What the inference rank will have merged: attention over A and the state is attention over both.
      for (uint32_t j = 0; j < spec_.sink_tokens; ++j) attended.push_back(j);
      for (uint32_t j = recent; j <= position; ++j) attended.push_back(j);
      std::vector<uint32_t> own = selected;
      for (uint32_t j = 0; j < spec_.sink_tokens; ++j) own.push_back(j);
      for (uint32_t j = recent; j <= position; ++j) own.push_back(j);
      const State expected = AttendReference(cluster, *sequence, position, layer, head, attended);
      const State resident = AttendReference(cluster, *sequence, position, layer, head, own);
      for (int g = 0; g < cluster.shape.layout.group_size(); ++g) {
        const double weight = verification.lse.empty() ? 0 : std::exp(verification.lse[g] - expected.lse[g]);
        const double rest = std::exp(resident.lse[g] - expected.lse[g]);
        for (int d = 0; d < dim; ++d) {
          const double merged =
              rest * resident.o[g][d] + (verification.o.empty() ? 0 : weight * verification.o[g * dim + d]);
          EXPECT_NEAR(merged, expected.o[g][d], kTolerance);
        }
      }
      EXPECT_TRUE(std::isnan(sequence->masses[position][list])) << "masses go with the verifications";
    }
  }
  const bool misses = spec_.predictor != Predictor::kExact || spec_.reuse_interval > 1;
  if (misses && spec_.correction == Correction::kRemote) {
    EXPECT_GT(actions[wire::kPartialMissedTopK], 0);
  }
  if (wanted > 0) {
    EXPECT_GT(actions[wire::kPartialWidened], 0);
  }
  if (wanted > 0) {
    EXPECT_TRUE(grew) << "the case must exercise growth";
  }
  const CacheRankSnapshot metrics = cluster.metrics.Snapshot();
  EXPECT_EQ(metrics.verifications, 20u * 6);
  EXPECT_EQ(metrics.captured_mass[1].count, 20u * heads);
  EXPECT_EQ(metrics.corrected_mass[1].count, 20u * heads);
  EXPECT_GE(metrics.correction_rows, rows_read);
  EXPECT_EQ(metrics.budget_growths > 0, grew);
}

TEST_P(GuardTest, SelectionsAreWhatTheySayWithTheBudgetsThatHaveGrown) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  FakeSequence* sequence = rank->Prefill(1, 11, spec_, 301);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(rank->Decode({sequence})) << i << ": " << rank->Errors();
  for (const auto& [position, lists] : sequence->selections) {
    const uint32_t anchor = sequence->Anchor(position);
    for (size_t list = 0; list < lists.size(); ++list) {
      if (anchor != position) {
        EXPECT_EQ(lists[list], sequence->selections.at(anchor)[list]) << position;
      }
      const int heads = cluster.shape.layout.num_kv_heads, layer = static_cast<int>(list) / heads;
      if (lists[list].size() > spec_.budget_tokens) continue;  // CheckSelection knows the first budget only
      EXPECT_EQ(cluster.CheckSelection(*sequence, position, layer, static_cast<int>(list) % heads, lists[list]), "");
    }
  }
}

TEST_P(GuardTest, DependsOnNothingButTheSequence) {
  const Served expected = Baseline(13, 250, 20);
  struct Variation {
    const char* name;
    float pool_factor;
    int neighbours;
    TestCluster::Options options;
  };
  std::vector<Variation> variations = {
      {"large pool", 12, 0, {.data_plane = TestCluster::SmallDataPlane()}},
      {"batched", 1, 3, {.data_plane = TestCluster::SmallDataPlane()}},
      {"two threads, slow", 5, 2, {.data_plane = TestCluster::SmallDataPlane(), .num_threads = 2, .lag = 7}},
      {"one row at a time, tiny frames", 1, 2, {.data_plane = TestCluster::SmallDataPlane()}},
      {"nothing measured", 1, 1, {.data_plane = TestCluster::SmallDataPlane()}}};
  variations[3].options.data_plane.selector.batch_rows = 1;
  variations[3].options.data_plane.streamer.frame_bytes = 600;
  variations[4].options.data_plane.selector.measure_captured_mass = false;
  for (const Variation& variation : variations) {
    SCOPED_TRACE(variation.name);
    TestCluster cluster(variation.options);
    auto rank = cluster.NewRank();
    SelectionSpec spec = spec_;
    spec.pool_factor = variation.pool_factor;
    std::vector<FakeSequence*> rows{rank->Prefill(1, 13, spec, 250)};
    for (int i = 0; i < variation.neighbours; ++i) {
      SelectionSpec other = spec_;
      if (i == 1) other.min_captured_mass = 0, other.correction = Correction::kNone;
      rows.insert(rows.begin(), rank->Prefill(2 + i, 50 + i, other, 40 + 70 * i));
    }
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(rank->Decode(rows)) << rank->Errors();
    EXPECT_EQ(rank->Errors(), "");
    ExpectServedAlike(*rows.back(), expected);
  }
}

TEST_P(GuardTest, AReattachKeepsTheStateOfGrowth) {
  const Served expected = Baseline(14, 250, 25);
  for (const int layers_of_last_step : {0, 1, 2, 3}) {
    for (const uint32_t max_restart : {UINT32_MAX, 258u}) {
      SCOPED_TRACE(testing::Message() << layers_of_last_step << " layers, restart at most " << max_restart);
      TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
      auto rank = cluster.NewRank();
      FakeSequence* before = rank->Prefill(1, 14, spec_, 250);
      for (int i = 0; i < 10; ++i) ASSERT_TRUE(rank->Decode({before}));
      ASSERT_TRUE(rank->Decode({before}, layers_of_last_step));
      cluster.PumpCacheRank();
      cluster.data_plane->CloseLink(rank->link(), absl::UnavailableError("killed"));
      auto successor = cluster.NewRank();
      FakeSequence* after = successor->Attach(*before, max_restart);
      EXPECT_EQ(after->next_position, std::min(max_restart, layers_of_last_step == 3 ? 261u : 260u));
      while (after->next_position < 275) ASSERT_TRUE(successor->Decode({after})) << successor->Errors();
      EXPECT_EQ(rank->Errors() + successor->Errors(), "");
      ExpectServedAlike(*after, expected);
    }
  }
}

// The rows of the last position have come in every layer, but the rank died before its verifications: they decide later
// budgets, so the position is served again.
TEST_P(GuardTest, APositionWithoutVerificationIsServedAgain) {
  const Served expected = Baseline(16, 250, 15);
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  FakeSequence* before = rank->Prefill(1, 16, spec_, 250);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(rank->Decode({before}));
  rank->SendPlan({before});
  for (int layer = 0; layer < 3; ++layer) rank->SendLayer(layer);
  cluster.transport->Progress();  // takes the frames, scores nothing
  ASSERT_EQ(cluster.data_plane->store().Find(1)->kv.watermark(), 257u);
  auto successor = cluster.NewRank();
  FakeSequence* after = successor->Attach(*before);
  // The other way of having to serve it: 256 is an anchor, and its selection has not been made.
  const bool lacks_anchor = spec_.reuse_interval > 1 && !PredictsFromPast(spec_.predictor);
  EXPECT_EQ(after->next_position, GrowsBudgets(spec_) || lacks_anchor ? 256u : 257u);
  while (after->next_position < 265) ASSERT_TRUE(successor->Decode({after})) << successor->Errors();
  EXPECT_EQ(successor->Errors(), "");
  ExpectServedAlike(*after, expected);
}

TEST_P(GuardTest, AForkContinuesAsItsSourceWould) {
  const Served expected = Baseline(15, 250, 16);
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  FakeSequence* source = rank->Prefill(1, 15, spec_, 250);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(rank->Decode({source}));
  FakeSequence* fork = rank->Fork(*source, 2);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(rank->Decode({fork, source})) << rank->Errors();
  EXPECT_EQ(rank->Errors(), "");
  ExpectServedAlike(*fork, expected);
  ExpectServedAlike(*source, expected);
}

INSTANTIATE_TEST_SUITE_P(Specifications, GuardTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST(Guard, RefusesALayerWithoutTheQueryThatItIsToVerifyWith) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  FakeSequence* sequence = rank->Prefill(1, 19, Guarded(Predictor::kLast, 0.9f, Correction::kNone), 180);
  rank->SendPlan({sequence});
  rank->SendLayer(0, /*with_queries=*/false);
  EXPECT_TRUE(cluster.PumpUntil(*rank, [&] { return !rank->failed.empty(); }));
  EXPECT_EQ(rank->failed, (std::vector<std::pair<uint64_t, uint32_t>>{{1, 0}}));
}

}  // namespace
}  // namespace winnow::test
