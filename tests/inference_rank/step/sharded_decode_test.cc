// Sequences whose KV is spread over several cache ranks: every byte that attention reads, and so every logit, is what
// one cache rank would have given, whatever selects.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/selection/presets.h"
#include "common/selection/spec_text.h"
#include "tests/inference_rank/two_ranks.h"

namespace winnow::test {
namespace {

constexpr uint32_t kPrompt = 150;
constexpr uint32_t kDecodes = 40;
// Small enough that most rows are left out.
constexpr char kSmall[] = ",budget=24,sinks=2,recent=16";

const TinyModel kModel{.num_layers = 3, .num_query_heads = 8, .num_kv_heads = 4, .head_dim = 16};

struct Outputs {
  std::vector<std::vector<float>> logits;  // of each row of each step
  uint64_t streamed_rows = 0;
  double mass = 0;

  bool operator==(const Outputs&) const = default;
};

// Three sequences of different lengths: in one batch where `together`.
Outputs DecodeAll(const SelectionSpec& spec, int num_shards, bool together, bool rotates_shards = false) {
  TwoRanks ranks(kModel, std::chrono::seconds(20), num_shards);
  ranks.rotates_shards = rotates_shards;
  Outputs outputs;
  std::vector<Sequence*> sequences;
  for (uint32_t i = 0; i < 3; ++i) {
    sequences.push_back(ranks.Prefill(i + 1, /*seed=*/i, spec, kPrompt + 13 * i, kDecodes));
    outputs.logits.push_back(ranks.prompt_logits());
  }
  for (uint32_t step = 0; step < kDecodes; ++step) {
    std::vector<std::vector<float>> rows;
    if (together) {
      rows = ranks.Decode(sequences);
    } else {
      for (Sequence* sequence : sequences) rows.push_back(ranks.Decode({sequence}).front());
    }
    outputs.logits.insert(outputs.logits.end(), rows.begin(), rows.end());
  }
  for (const Sequence* sequence : sequences) {
    EXPECT_TRUE(sequence->failure.ok()) << sequence->failure;
    outputs.streamed_rows += sequence->streamed_rows;
    outputs.mass += sequence->mass.mean();
  }
  for (const absl::Status& status : ranks.malformed) ADD_FAILURE() << status;
  return outputs;
}

class ShardedDecodeTest : public testing::TestWithParam<std::string> {};

TEST_P(ShardedDecodeTest, GivesTheBitsOfOneCacheRank) {
  const SelectionSpec spec = ParseSpec(GetParam()).value();
  const Outputs one = DecodeAll(spec, 1, /*together=*/true);
  // By kv head; by unequal numbers of them; by kv head and, beyond that, layers, down to one list each.
  for (const int num_shards : {2, 3, 4, 8, 12}) {
    const Outputs sharded = DecodeAll(spec, num_shards, /*together=*/true);
    EXPECT_EQ(sharded.logits, one.logits) << num_shards << " shards";
    EXPECT_EQ(sharded.streamed_rows, one.streamed_rows) << num_shards << " shards";
    EXPECT_NEAR(sharded.mass, one.mass, 1e-6) << num_shards << " shards";
  }
  EXPECT_EQ(DecodeAll(spec, 5, /*together=*/false).logits, one.logits) << "one by one";
  // Of five shards two have a part of the layers: a cache rank's plans are of sequences with different ones.
  EXPECT_EQ(DecodeAll(spec, 5, /*together=*/true, /*rotates_shards=*/true).logits, one.logits) << "different shards";
}

std::vector<std::string> Specifications() {
  const std::string small = kSmall;
  return {"winnow" + small,
          "depth" + small,
          "depth,lookahead=2" + small,
          "async-token" + small,
          "exact-token" + small,
          "exact-token,scorer=two-stage,min_candidate_tokens=0" + small,
          "quest" + small,
          "psa" + small,
          "dense",
          "depth,min_captured_mass=0.9" + small,
          "exact-token,correction=remote" + small,
          "exact-token,reuse_interval=4" + small};
}

std::string NameOf(const testing::TestParamInfo<std::string>& info) {
  std::string name;
  for (const char c : info.param.substr(0, info.param.find(kSmall))) name += std::isalnum(c) != 0 ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Specifications, ShardedDecodeTest, testing::ValuesIn(Specifications()), NameOf);

// The heads of a profile keep their budgets, a streaming one among them.
TEST(ShardedDecode, CutsBudgetsByHead) {
  SelectionSpec spec = ParseSpec(absl::StrCat("exact-token", kSmall)).value();
  spec.head_budgets = {24, 8, 0, 40, 16, 24, 32, 0, 8, 8, 56, 24};
  const Outputs one = DecodeAll(spec, 1, true);
  for (const int num_shards : {2, 3, 7}) EXPECT_EQ(DecodeAll(spec, num_shards, true).logits, one.logits) << num_shards;
}

TEST(ShardedDecode, EachCacheRankHoldsItsShardAlone) {
  const SelectionSpec spec = ParseSpec(absl::StrCat("exact-token", kSmall)).value();
  TwoRanks one(kModel), sharded(kModel, std::chrono::seconds(20), 4);
  one.Prefill(1, 0, spec, kPrompt, kDecodes);
  sharded.Prefill(1, 0, spec, kPrompt, kDecodes);
  const auto taken = [](const DataPlane& plane) { return plane.blocks().used() + plane.blocks().reserved(); };
  const size_t whole = taken(one.data_plane(0));
  for (size_t shard = 0; shard < 4; ++shard) EXPECT_EQ(taken(sharded.data_plane(shard)), whole / 4);
}

}  // namespace
}  // namespace winnow::test
