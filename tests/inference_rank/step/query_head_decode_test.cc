// Decode steps of two real ranks whose query heads have selections of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

#include "tests/inference_rank/two_ranks.h"
#include "tests/support/reference_model.h"

namespace winnow::test {
namespace {

using ::testing::HasSubstr;
using Logits = std::vector<std::vector<float>>;

constexpr uint32_t kPrompt = 260, kDecodes = 10;

// Four query heads to a kv head.
const TinyModel kModel{.num_layers = 3, .num_query_heads = 8, .storage = Dtype::kF32};

SelectionSpec Spec(Predictor predictor, ListPer list_per = ListPer::kQueryHead) {
  SelectionSpec spec;
  spec.preset = "test";
  spec.predictor = predictor;
  spec.list_per = list_per;
  spec.budget_tokens = 32;
  spec.recent_tokens = 32;
  return spec;
}
// The preset of that name, in small: layer 1 has a streaming head.
SelectionSpec LServeSpec() {
  SelectionSpec spec = Spec(Predictor::kExact);
  spec.scorer = Scorer::kHierarchical;
  spec.physical_page_tokens = 32;
  spec.head_budgets = {32, 48, 0, 32, 40, 32};
  spec.reuse_interval = 4;
  return spec;
}

// Notes what each query head attends to: [layer][query head] positions.
class RecordingKv final : public DecodeKv {
 public:
  RecordingKv(TwoRanks& ranks, const Sequence& sequence) : ranks_(ranks), sequence_(sequence) {}

  int Lookahead() const override { return ranks_.decode_step().Lookahead(); }
  void Publish(const DecodeLayerOutput& output) override { ranks_.decode_step().Publish(output); }
  void AwaitSlots(int layer, SlotLists& lists) override {
    ranks_.decode_step().AwaitSlots(layer, lists);
    if (layer == 0) attended.clear();
    std::vector<std::vector<uint32_t>>& heads = attended.emplace_back();
    num_lists += lists.size();
    for (size_t list = 0; list < lists.size(); ++list) {
      const int kv_head = static_cast<int>(heads.size()) / ranks_.layout().group_size();
      heads.insert(heads.end(), lists.heads()[list], Positions(layer, kv_head, lists.slots(list)));
    }
  }

  std::vector<std::vector<std::vector<uint32_t>>> attended;
  size_t num_lists = 0;  // over all layers and steps

 private:
  // Which rows the slots hold, by their bytes.
  std::vector<uint32_t> Positions(int layer, int kv_head, std::span<const uint32_t> slots) const {
    std::vector<uint32_t> positions;
    const SelectionSpec& spec = sequence_.spec;
    const uint32_t window = WindowStart(spec, sequence_.next_position, kPrompt);
    const bool streams = Streams(spec, static_cast<size_t>(layer) * ranks_.layout().num_kv_heads + kv_head);
    uint32_t p = 0;
    for (const uint32_t slot : slots) {                  // in position order
      if (streams && p == spec.sink_tokens) p = window;  // what lies between is stored nowhere
      const auto holds = [&] {
        return std::memcmp(ranks_.slots().row(slot), ranks_.StoredRow(sequence_, layer, kv_head, p),
                           ranks_.layout().row_bytes()) == 0;
      };
      while (p < sequence_.next_position && !holds()) ++p;  // the newest one is not stored yet
      positions.push_back(p++);
    }
    return positions;
  }

  TwoRanks& ranks_;
  const Sequence& sequence_;
};

struct Case {
  std::string name;
  SelectionSpec spec;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}
std::vector<Case> Cases() {
  SelectionSpec full = Spec(Predictor::kExact);
  full.transfer = Transfer::kFull;
  SelectionSpec prefetch = Spec(Predictor::kDepth);
  prefetch.prefetch = Prefetch::kTemporal;
  return {{"exact", Spec(Predictor::kExact)},
          {"depth", Spec(Predictor::kDepth)},
          {"temporal", Spec(Predictor::kTemporal)},
          {"full", full},
          {"prefetch", prefetch},
          {"lserve", LServeSpec()}};
}
class QueryHeadDecodeTest : public testing::TestWithParam<Case> {
 protected:
  const SelectionSpec spec_ = GetParam().spec;
};
INSTANTIATE_TEST_SUITE_P(Specifications, QueryHeadDecodeTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max<double>(worst, std::abs(a[i] - b[i]));
  return worst;
}

TEST_P(QueryHeadDecodeTest, IsAttentionOfEachQueryHeadOverItsOwnRows) {
  TwoRanks ranks(kModel);
  Sequence* sequence = ranks.Prefill(1, 5, spec_, kPrompt, kDecodes);
  RecordingKv kv(ranks, *sequence);
  const TempDir directory;
  WriteTinyCheckpoint(kModel, directory.path());
  ReferenceModel reference(*Checkpoint::Open(directory.path()).value(), ranks.config());
  for (const uint32_t token : sequence->prompt) reference.Append(token);
  const int group = ranks.layout().group_size();
  bool heads_differ = false;
  double unlike_first_head = 0;
  for (uint32_t i = 0; i < kDecodes; ++i) {
    const uint32_t position = sequence->next_position;
    const std::vector<float> logits = ranks.Decode({sequence}, &kv)[0];
    ASSERT_TRUE(sequence->failure.ok()) << sequence->failure;
    ASSERT_TRUE(ranks.malformed.empty()) << ranks.malformed[0];
    const uint32_t window = WindowStart(spec_, position, kPrompt), sinks = spec_.sink_tokens;
    const auto own_rows = [&](int layer, int head, std::span<const double> scores) {
      const std::vector<uint32_t>& attended = kv.attended[layer][head];
      heads_differ |= attended != kv.attended[layer][head / group * group];
      // Sinks, as many rows as the budget allows, recent window.
      const size_t list = static_cast<size_t>(layer) * ranks.layout().num_kv_heads + head / group;
      const uint32_t budget = HeadBudget(spec_, list);
      std::vector<uint32_t> fixed(sinks);
      std::iota(fixed.begin(), fixed.end(), 0u);
      for (uint32_t p = window; p <= position; ++p) fixed.push_back(p);
      std::vector<uint32_t> selected;
      std::set_difference(attended.begin(), attended.end(), fixed.begin(), fixed.end(), std::back_inserter(selected));
      EXPECT_EQ(attended.size(), fixed.size() + budget);
      EXPECT_EQ(selected.size(), budget);
      // What the real query of this head alone wants most. 2e-3: f32 sums of three layers before.
      if (spec_.predictor == Predictor::kExact && spec_.scorer == Scorer::kToken) {
        double least = INFINITY;
        for (const uint32_t p : selected) least = std::min(least, scores[p]);
        for (uint32_t p = sinks; p < window; ++p) {
          const bool in = std::binary_search(selected.begin(), selected.end(), p);
          EXPECT_TRUE(in || scores[p] <= least + 2e-3) << "layer " << layer << " head " << head << " row " << p;
        }
      }
      return attended;
    };
    ReferenceModel wrong = reference;
    reference.Append(sequence->token_at(position), own_rows);
    const std::vector<float> expected = reference.Logits();
    double largest = 0;
    for (const float logit : expected) largest = std::max<double>(largest, std::abs(logit));
    // f32 sums of three layers against f64: 2^-24 each, growing with the root of their number.
    EXPECT_LT(LargestDifference(logits, expected), 2e-5 * largest) << "step " << i;
    wrong.Append(sequence->token_at(position),
                 [&](int layer, int head, auto) { return kv.attended[layer][head / group * group]; });
    unlike_first_head = std::max(unlike_first_head, LargestDifference(logits, wrong.Logits()) / largest);
  }
  EXPECT_TRUE(heads_differ);
  EXPECT_GT(unlike_first_head, 1e-3) << "whose rows a head reads must matter";
  // One list per query head; one for the four of a streaming head.
  const size_t streaming = std::count(spec_.head_budgets.begin(), spec_.head_budgets.end(), 0u);
  EXPECT_EQ(kv.num_lists, kDecodes * ((6 - streaming) * 4 + streaming));
}

Logits DecodeAlone(const SelectionSpec& spec, uint32_t prompt = kPrompt, uint32_t decodes = kDecodes) {
  TwoRanks ranks(kModel);
  Sequence* sequence = ranks.Prefill(1, 5, spec, prompt, decodes);
  Logits all;
  for (uint32_t i = 0; i < decodes; ++i) all.push_back(ranks.Decode({sequence})[0]);
  EXPECT_TRUE(sequence->failure.ok()) << sequence->failure;
  EXPECT_TRUE(ranks.malformed.empty()) << ranks.malformed[0];
  return all;
}

TEST_P(QueryHeadDecodeTest, NobodysBitsDependOnPoolsOrWhoElseIsInTheBatch) {
  const SelectionSpec shared = Spec(Predictor::kDepth, ListPer::kKvHead);
  const Logits expected = DecodeAlone(spec_), expected_shared = DecodeAlone(shared);
  ASSERT_NE(expected, expected_shared);
  for (const float pool_factor : {1.0f, 7.0f}) {
    SelectionSpec spec = spec_;
    spec.pool_factor = pool_factor;
    EXPECT_EQ(DecodeAlone(spec), expected) << pool_factor;
  }
  TwoRanks ranks(kModel);
  const SelectionSpec dense{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  const std::vector<Sequence*> rows = {
      ranks.Prefill(1, 5, shared, kPrompt, kDecodes), ranks.Prefill(2, 8, dense, kPrompt - 30, kDecodes),
      ranks.Prefill(3, 5, spec_, kPrompt, kDecodes), ranks.Prefill(4, 9, spec_, kPrompt - 40, kDecodes)};
  for (uint32_t i = 0; i < kDecodes; ++i) {
    const Logits logits = ranks.Decode(rows);
    ASSERT_EQ(logits[0], expected_shared[i]);
    ASSERT_EQ(logits[2], expected[i]);
  }
}

TEST(QueryHeadDecode, IsDenseUntilOneListNoLongerFitsItsBudget) {
  // From 60 on rows leave the window; 32 of them fit. The pools would hold all four heads' budgets together.
  const SelectionSpec dense{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget, .recent_tokens = 32};
  const Logits sparse = DecodeAlone(Spec(Predictor::kExact), 60, 60), full = DecodeAlone(dense, 60, 60);
  uint32_t equal = 0;
  while (equal < 60 && sparse[equal] == full[equal]) ++equal;
  const SelectionSpec spec = Spec(Predictor::kExact);
  uint32_t everything = 0;
  while (AttendsEverything(spec, 0, 60 + everything, 60)) ++everything;
  EXPECT_EQ(equal, everything);
  EXPECT_GT(everything, 20u);
  EXPECT_LT(everything, 50u);
}

TEST(QueryHeadDecode, HeadsThatSelectTheSameHaveTheBitsOfASharedList) {
  EXPECT_EQ(DecodeAlone(Spec(Predictor::kFixed, ListPer::kQueryHead)),
            DecodeAlone(Spec(Predictor::kFixed, ListPer::kKvHead)));
  EXPECT_NE(DecodeAlone(Spec(Predictor::kExact, ListPer::kQueryHead)),
            DecodeAlone(Spec(Predictor::kExact, ListPer::kKvHead)));
}

// Delta frames that no correct cache rank sends, each of which costs it the link.
class MalformedMembersTest : public testing::Test {
 protected:
  MalformedMembersTest() {
    const std::vector<Sequence*> rows = {
        ranks_.Prefill(1, 5, Spec(Predictor::kExact), kPrompt, kDecodes),
        ranks_.Prefill(2, 5, Spec(Predictor::kExact, ListPer::kKvHead), kPrompt, kDecodes)};
    set_ = &*rows[0]->working_set;
    ranks_.decode_step().Begin(7, rows);
  }

  // An entry that selects pool indices 0, 1, .. with these masks; without kDeltaMembers in its flags they are left out.
  absl::Status Take(uint32_t plan_row, uint16_t flags, const std::vector<QueryHeadMask>& masks,
                    std::optional<uint32_t> num_selected = std::nullopt) {
    std::vector<uint32_t> selected(masks.size());
    std::iota(selected.begin(), selected.end(), 0u);
    wire::DeltaEntry entry{};
    entry.plan_row = plan_row;
    entry.flags = flags;
    entry.num_selected = num_selected.value_or(static_cast<uint32_t>(selected.size()));
    entry.captured_mass = NAN;
    std::vector<std::byte> payload;
    const auto append = [&](const void* data, size_t bytes) {
      const auto* begin = static_cast<const std::byte*>(data);
      payload.insert(payload.end(), begin, begin + bytes);
      payload.resize(wire::AlignUp(payload.size(), 4));
    };
    append(&entry, sizeof entry);
    append(selected.data(), selected.size() * sizeof(uint32_t));
    if ((flags & wire::kDeltaMembers) != 0) append(masks.data(), masks.size() * sizeof masks[0]);
    wire::FrameHeader header{};
    header.type = wire::FrameType::kDelta;
    header.plan = 7;
    header.row_count = 1;
    return ranks_.decode_step().OnDelta(ranks_.link(), ReceivedFrame(header, payload, nullptr, nullptr));
  }
  void ExpectMalformed(const absl::Status& status, const char* what) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }

  static constexpr uint16_t kFirst = wire::kDeltaFirst | wire::kDeltaLast;
  static constexpr uint16_t kMembers = kFirst | wire::kDeltaMembers;
  TwoRanks ranks_{kModel};
  WorkingSet* set_;
};

TEST_F(MalformedMembersTest, AreNamed) {
  ExpectMalformed(Take(0, kMembers, {1, 0, 3}), "mask 0 of query heads, of which there are 4");
  ExpectMalformed(Take(0, kMembers, {1, 16}), "mask 16 of query heads");
  ExpectMalformed(Take(0, kMembers, {0x8001}), "mask 32769 of query heads");
  ExpectMalformed(Take(0, kFirst, {1, 2}), "0 masks of query heads with a selection of 2 rows for 4 lists");
  ExpectMalformed(Take(1, kMembers, {1, 1}), "2 masks of query heads with a selection of 2 rows for 1 lists");
  ExpectMalformed(Take(0, kMembers, {1, 2}, 3), "exceeds the payload");
  ExpectMalformed(Take(0, kMembers, {1, 2}, UINT32_MAX), "exceeds the payload");
  ExpectMalformed(Take(0, kMembers | 32, {1, 2}), "flags 43");
  ExpectMalformed(Take(0, wire::kDeltaLast | wire::kDeltaMembers, {1, 2}), "flags 10 and 2 selected rows");
  EXPECT_EQ(set_->NumSlotLists(0, 0), 1) << "none of them has changed anything";
  EXPECT_TRUE(Take(0, kMembers, {1, 6, 9}).ok());
  EXPECT_TRUE(Take(1, kFirst, {1, 1}).ok());
  ASSERT_EQ(set_->NumSlotLists(0, 0), 4);
  const size_t fixed = 4 + kPrompt + 1 - WindowStart(Spec(Predictor::kExact), kPrompt, kPrompt);
  for (const auto& [head, count] : {std::pair(0, 2), std::pair(1, 1), std::pair(2, 1), std::pair(3, 1)}) {
    EXPECT_EQ(set_->Slots(0, 0, head).size(), fixed + count) << head;
  }
}

}  // namespace
}  // namespace winnow::test
