// Verifications and corrections through the real decode step and a real cache rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/inference_rank/two_ranks.h"

namespace winnow::test {
namespace {

using ::testing::HasSubstr;
using Logits = std::vector<std::vector<float>>;

constexpr uint32_t kPrompt = 260, kDecodes = 12;

const TinyModel kModel{.num_layers = 3, .storage = Dtype::kF32};

SelectionSpec Spec(Predictor predictor, float min_captured_mass, Correction correction) {
  SelectionSpec spec;
  spec.preset = "test";
  spec.predictor = predictor;
  spec.budget_tokens = 32;
  spec.recent_tokens = 32;
  spec.min_captured_mass = min_captured_mass;
  spec.correction = correction;
  spec.budget_growth = 4;
  return spec;
}
SelectionSpec DenseSpec() {
  SelectionSpec spec;
  spec.predictor = Predictor::kDense;
  spec.budget_tokens = kUnlimitedBudget;
  return spec;
}

class GuardedDecodeTest : public testing::TestWithParam<Predictor> {};

Logits DecodeAlone(const SelectionSpec& spec, MassSummary* mass = nullptr) {
  TwoRanks ranks(kModel);
  Sequence* sequence = ranks.Prefill(1, 5, spec, kPrompt, kDecodes);
  Logits all;
  for (uint32_t i = 0; i < kDecodes; ++i) all.push_back(ranks.Decode({sequence})[0]);
  EXPECT_TRUE(sequence->failure.ok()) << sequence->failure;
  EXPECT_TRUE(ranks.malformed.empty()) << ranks.malformed[0];
  if (mass != nullptr) *mass = sequence->mass;
  return all;
}

// The largest difference between logits, relative to the largest logit.
double Difference(const Logits& a, const Logits& b) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) {
      worst = std::max<double>(worst, std::abs(a[i][j] - b[i][j]));
      largest = std::max<double>(largest, std::abs(b[i][j]));
    }
  }
  return worst / largest;
}

TEST_P(GuardedDecodeTest, ASmallestMassOfOneIsDenseAttention) {
  const Logits dense = DecodeAlone(DenseSpec());
  EXPECT_GT(Difference(DecodeAlone(Spec(GetParam(), 0, Correction::kNone)), dense), 1e-3) << "selection must matter";
  for (const uint32_t reuse : {1u, 4u}) {
    SelectionSpec spec = Spec(GetParam(), 1, Correction::kNone);
    spec.reuse_interval = reuse;
    MassSummary mass;
    // Three layers of f32 sums over 270 rows in another order, 2^-24 each and growing with the root of their number.
    EXPECT_LT(Difference(DecodeAlone(spec, &mass), dense), 1e-5) << reuse;
    EXPECT_EQ(mass.count(), uint64_t{kDecodes} * 3 * 2) << reuse;
    EXPECT_EQ(mass.mean(), 1) << reuse;
  }
}

// Stands between transformer and decode step, and recomputes each layer's attention in double from the rows that the
// cache rank stores.
class CheckingKv final : public DecodeKv {
 public:
  CheckingKv(TwoRanks& ranks, const Sequence& sequence) : ranks_(ranks), sequence_(sequence) {}

  int Lookahead() const override { return ranks_.decode_step().Lookahead(); }
  bool WaitsForPartials() const override { return ranks_.decode_step().WaitsForPartials(); }
  void Publish(const DecodeLayerOutput& output) override {
    const size_t floats = static_cast<size_t>(ranks_.layout().num_query_heads) * ranks_.layout().head_dim;
    queries_.assign(output.q_pre_rope, output.q_pre_rope + floats);
    ranks_.decode_step().Publish(output);
  }
  void AwaitSlots(int layer, SlotLists& lists) override {
    ranks_.decode_step().AwaitSlots(layer, lists);
    attended_.clear();
    for (int head = 0; head < ranks_.layout().num_kv_heads; ++head) {
      attended_.push_back(Positions(layer, head, lists.slots(head)));
    }
  }
  std::span<const PartialAttention> AwaitPartials(int layer) override {
    const std::span<const PartialAttention> partials = ranks_.decode_step().AwaitPartials(layer);
    for (int head = 0; head < ranks_.layout().num_kv_heads; ++head) {
      const auto of_head = [&](const PartialAttention& p) { return p.kv_head == head; };
      const auto partial = std::find_if(partials.begin(), partials.end(), of_head);
      CheckHead(layer, head, partial == partials.end() ? nullptr : &*partial);
    }
    return partials;
  }

  int corrected_heads = 0;

 private:
  struct State {
    std::vector<double> o;
    double lse = 0;
  };

  // Which rows the slots hold, by their bytes.
  std::vector<uint32_t> Positions(int layer, int head, std::span<const uint32_t> slots) const {
    std::vector<uint32_t> positions;
    uint32_t p = 0;
    for (const uint32_t slot : slots) {  // in position order
      const std::byte* row = ranks_.slots().row(slot);
      const auto holds = [&] {
        if (p == sequence_.next_position) return true;  // the newest one, not stored yet
        return std::memcmp(row, ranks_.StoredRow(sequence_, layer, head, p), ranks_.layout().row_bytes()) == 0;
      };
      while (p < sequence_.next_position && !holds()) ++p;
      positions.push_back(p++);
    }
    return positions;
  }

  std::vector<double> Rotated(int query_head) const {
    const int dim = ranks_.layout().head_dim;
    const float* q = queries_.data() + query_head * dim;
    std::vector<double> out(dim);
    for (int i = 0; i < dim / 2; ++i) {
      const double angle = static_cast<double>(sequence_.next_position) * ranks_.rope().inv_freq[i];
      out[i] = q[i] * std::cos(angle) - q[i + dim / 2] * std::sin(angle);
      out[i + dim / 2] = q[i + dim / 2] * std::cos(angle) + q[i] * std::sin(angle);
    }
    return out;
  }
  double Score(const std::vector<double>& q, const float* row) const {
    double score = 0;
    for (size_t d = 0; d < q.size(); ++d) score += q[d] * row[d];
    return ranks_.attention_scale() * score;
  }
  State Attend(const std::vector<double>& q, int layer, int head, const std::vector<uint32_t>& positions) const {
    State state{std::vector<double>(q.size())};
    double sum = 0;
    for (const uint32_t p : positions) {
      const float* row = ranks_.StoredRow(sequence_, layer, head, p);
      const double weight = std::exp(Score(q, row));
      sum += weight;
      for (size_t d = 0; d < q.size(); ++d) state.o[d] += weight * row[q.size() + d];
    }
    for (double& x : state.o) x /= sum;
    state.lse = std::log(sum);
    return state;
  }

  // A merged with what came must be attention over A and the top-k of the real query.
  void CheckHead(int layer, int head, const PartialAttention* partial) {
    const int group = ranks_.layout().group_size(), dim = ranks_.layout().head_dim;
    const uint32_t position = sequence_.next_position;
    const SelectionSpec& spec = sequence_.spec;
    std::vector<std::vector<double>> queries;
    std::vector<double> importance(position);
    for (int g = 0; g < group; ++g) {
      queries.push_back(Rotated(head * group + g));
      std::vector<double> weights(position);
      double sum = 0;
      for (uint32_t p = 0; p < position; ++p) {
        sum += weights[p] = std::exp(Score(queries[g], ranks_.StoredRow(sequence_, layer, head, p)));
      }
      for (uint32_t p = 0; p < position; ++p) importance[p] += weights[p] / sum;
    }
    const uint32_t recent = RecentStart(position, spec.recent_tokens, spec.sink_tokens, kBlockTokens);
    std::vector<uint32_t> top_k;
    for (uint32_t p = spec.sink_tokens; p < recent; ++p) top_k.push_back(p);
    std::stable_sort(top_k.begin(), top_k.end(), [&](uint32_t a, uint32_t b) { return importance[a] > importance[b]; });
    top_k.resize(spec.budget_tokens);
    std::sort(top_k.begin(), top_k.end());
    std::vector<uint32_t> both;
    std::set_union(attended_[head].begin(), attended_[head].end(), top_k.begin(), top_k.end(),
                   std::back_inserter(both));
    ASSERT_EQ(partial != nullptr, both.size() > attended_[head].size());
    corrected_heads += partial != nullptr;
    for (int g = 0; g < group; ++g) {
      const State resident = Attend(queries[g], layer, head, attended_[head]);
      const State expected = Attend(queries[g], layer, head, both);
      const double kept = std::exp(resident.lse - expected.lse);
      const double added = partial == nullptr ? 0 : std::exp(partial->lse[g] - expected.lse);
      EXPECT_NEAR(kept + added, 1, 1e-5);
      for (int d = 0; d < dim; ++d) {
        const double merged = kept * resident.o[d] + (partial == nullptr ? 0 : added * partial->o[g * dim + d]);
        ASSERT_NEAR(merged, expected.o[d], 1e-5) << "layer " << layer << " head " << head;
      }
    }
  }

  TwoRanks& ranks_;
  const Sequence& sequence_;
  std::vector<float> queries_;                   // of the layer, before RoPE
  std::vector<std::vector<uint32_t>> attended_;  // [kv head] positions of A
};

TEST_P(GuardedDecodeTest, RemoteCorrectionIsAttentionOverAAndTheExactTopK) {
  TwoRanks ranks(kModel);
  Sequence* sequence = ranks.Prefill(1, 6, Spec(GetParam(), 0, Correction::kRemote), kPrompt, kDecodes);
  CheckingKv kv(ranks, *sequence);
  for (uint32_t i = 0; i < kDecodes; ++i) ranks.Decode({sequence}, &kv);
  ASSERT_TRUE(sequence->failure.ok()) << sequence->failure;
  EXPECT_TRUE(ranks.malformed.empty());
  EXPECT_EQ(sequence->missed_top_k_corrections, static_cast<uint64_t>(kv.corrected_heads));
  if (GetParam() == Predictor::kExact) {
    EXPECT_EQ(kv.corrected_heads, 0);
  } else {
    EXPECT_GT(kv.corrected_heads, 20);
    EXPECT_GT(sequence->mass.mean(), sequence->mass_before.mean());
  }
  EXPECT_EQ(sequence->widened_corrections, 0u);
}

TEST_P(GuardedDecodeTest, NobodysBitsDependOnWhoElseIsInTheBatch) {
  const SelectionSpec guarded = Spec(GetParam(), 0.8f, Correction::kRemote);
  const SelectionSpec plain = Spec(GetParam(), 0, Correction::kNone);
  const Logits guarded_alone = DecodeAlone(guarded), plain_alone = DecodeAlone(plain);
  ASSERT_NE(guarded_alone, plain_alone);
  TwoRanks ranks(kModel);
  const std::vector<Sequence*> rows = {ranks.Prefill(1, 5, plain, kPrompt, kDecodes),
                                       ranks.Prefill(2, 5, guarded, kPrompt, kDecodes),
                                       ranks.Prefill(3, 9, guarded, kPrompt - 40, kDecodes)};
  for (uint32_t i = 0; i < kDecodes; ++i) {
    const Logits logits = ranks.Decode(rows);
    ASSERT_EQ(logits[0], plain_alone[i]);
    ASSERT_EQ(logits[1], guarded_alone[i]);
  }
}

std::string Name(Predictor predictor) {
  switch (predictor) {
    case Predictor::kExact:
      return "exact";
    case Predictor::kLast:
      return "last";
    case Predictor::kTemporal:
      return "temporal";
    default:
      return "depth";
  }
}
INSTANTIATE_TEST_SUITE_P(Predictors, GuardedDecodeTest,
                         testing::Values(Predictor::kExact, Predictor::kLast, Predictor::kTemporal, Predictor::kDepth),
                         [](const auto& info) { return Name(info.param); });

TEST(GuardedDecode, OnlyMassesOfUnverifiedScorersThatSkipKeysAreBounds) {
  struct Row {
    Scorer scorer;
    float min_captured_mass;
    bool is_bound;
  };
  for (const Row& row : {Row{Scorer::kToken, 0, false}, Row{Scorer::kPageMinmax, 0, true},
                         Row{Scorer::kTwoStage, 0, true}, Row{Scorer::kTwoStage, 0.5f, false}}) {
    SelectionSpec spec = Spec(Predictor::kDepth, row.min_captured_mass, Correction::kNone);
    spec.scorer = row.scorer;
    spec.candidate_factor = 2;
    spec.min_candidate_tokens = 0;
    TwoRanks ranks(kModel);
    Sequence* sequence = ranks.Prefill(1, 5, spec, kPrompt, kDecodes);
    for (uint32_t i = 0; i < kDecodes; ++i) ranks.Decode({sequence});
    ASSERT_TRUE(sequence->failure.ok()) << sequence->failure;
    EXPECT_GT(sequence->mass.count(), 0u);
    EXPECT_EQ(sequence->mass_is_bound, row.is_bound) << static_cast<int>(row.scorer) << " " << row.min_captured_mass;
  }
}

TEST(GuardedDecode, AVerificationThatDoesNotComePoisonsItsRowAlone) {
  TwoRanks ranks(kModel, std::chrono::milliseconds(50));
  const SelectionSpec plain = Spec(Predictor::kDepth, 0, Correction::kNone);
  const Logits expected = DecodeAlone(plain);
  Sequence* other = ranks.Prefill(1, 5, plain, kPrompt, kDecodes);
  Sequence* guarded = ranks.Prefill(2, 5, Spec(Predictor::kDepth, 0.9f, Correction::kNone), kPrompt, kDecodes);
  ranks.drop_partials = true;
  EXPECT_EQ(ranks.Decode({other, guarded})[0], expected[0]);
  EXPECT_TRUE(other->failure.ok());
  EXPECT_EQ(guarded->failure.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(guarded->retryable);
  EXPECT_EQ(guarded->next_position, kPrompt) << "its token is discarded";
  const auto stored = [&](uint64_t id) { return ranks.data_plane(0).store().Find(id)->kv.watermark(); };
  EXPECT_EQ(stored(1), kPrompt + 1);
  EXPECT_EQ(stored(2), kPrompt) << "another rank would go on behind rows that are not those of its tokens";
}

// Frames that no correct cache rank sends, each of which costs it the link.
class MalformedVerificationTest : public testing::Test {
 protected:
  MalformedVerificationTest() {
    sequence_ = ranks_.Prefill(1, 5, Spec(Predictor::kDepth, 0.9f, Correction::kNone), kPrompt, kDecodes);
    plain_ = ranks_.Prefill(2, 5, Spec(Predictor::kDepth, 0, Correction::kNone), kPrompt, kDecodes);
    ranks_.decode_step().Begin(7, std::vector<Sequence*>{sequence_, plain_});
    const KvLayout& layout = ranks_.layout();
    const std::vector<std::byte> rows(2 * layout.num_kv_heads * layout.row_bytes());
    const std::vector<float> queries(2 * layout.num_query_heads * layout.head_dim);
    ranks_.decode_step().Publish({.layer = 0,
                                  .kv_rows = rows.data(),
                                  .q_pre_rope = queries.data(),
                                  .prediction = queries.data(),
                                  .prediction_layer = 1});
    state_bytes_ = wire::PartialStateBytes(layout.group_size(), layout.head_dim);
  }

  absl::Status Take(const std::vector<wire::PartialEntry>& entries, size_t bytes_behind, uint16_t layer = 0,
                    uint64_t plan = 7) {
    std::vector<std::byte> payload(entries.size() * sizeof entries[0]);
    std::memcpy(payload.data(), entries.data(), payload.size());
    payload.resize(payload.size() + bytes_behind);
    wire::FrameHeader header{};
    header.type = wire::FrameType::kPartial;
    header.plan = plan;
    header.layer_first = layer;
    header.row_count = static_cast<uint32_t>(entries.size());
    return ranks_.decode_step().OnPartial(ranks_.link(), ReceivedFrame(header, payload, nullptr, nullptr));
  }
  void ExpectMalformed(const absl::Status& status, const char* what) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }

  TwoRanks ranks_{kModel};
  Sequence* sequence_;
  Sequence* plain_;
  size_t state_bytes_ = 0;
};

TEST_F(MalformedVerificationTest, IsNamed) {
  wire::PartialEntry good{.plan_row = 0, .kv_head = 1, .flags = 0, .mass_before = 1, .mass_after = 1, .rows_read = 0};
  auto with = [&](auto change) {
    wire::PartialEntry entry = good;
    change(entry);
    return std::vector{entry};
  };
  ExpectMalformed(Take(with([](auto& e) { e.plan_row = 2; }), 0), "plan row 2");
  ExpectMalformed(Take(with([](auto& e) { e.kv_head = 2; }), 0), "kv head 2");
  ExpectMalformed(Take(with([](auto& e) { e.flags = 3, e.rows_read = 1; }), state_bytes_), "flags 3");
  ExpectMalformed(Take(with([](auto& e) { e.flags = 8; }), 0), "flags 8");
  ExpectMalformed(Take(with([](auto& e) { e.flags = wire::kPartialMissedTopK; }), state_bytes_), "0 rows");
  ExpectMalformed(Take(with([](auto& e) { e.rows_read = 4; }), 0), "4 rows");
  ExpectMalformed(Take(with([](auto& e) { e.flags = 2, e.rows_read = 4; }), state_bytes_ - 4), "exceeds the payload");
  ExpectMalformed(Take(with([](auto& e) { e.plan_row = 1; }), 0), "unexpected verification");
  ExpectMalformed(Take({good}, 0, /*layer=*/1), "unexpected verification on layer 1");
  ExpectMalformed(Take({good}, 0, /*layer=*/9999), "layer 9999");
  EXPECT_TRUE(Take({good}, 0, 0, /*plan=*/6).ok()) << "a straggler of an earlier step";
  EXPECT_TRUE(Take({good}, 0).ok());
  ExpectMalformed(Take({good}, 0), "second verification");
  EXPECT_TRUE(sequence_->failure.ok());
  EXPECT_EQ(sequence_->mass.count(), 1u);
}

TEST_F(MalformedVerificationTest, ARestBehindTheEntriesIsNamed) {
  const wire::PartialEntry good{
      .plan_row = 0, .kv_head = 0, .flags = 0, .mass_before = 1, .mass_after = 1, .rows_read = 0};
  ExpectMalformed(Take({good}, 4), "end at byte 20 of 24");
}

}  // namespace
}  // namespace winnow::test
