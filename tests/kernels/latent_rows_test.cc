// Rows of latent attention: every kernel that reads rows gives the bits that it gives of rows with the key once more in
// the place of the value; what writes them; and the rule by which an indexer scores index keys.
#include <algorithm>
#include <cmath>

#include "common/base/latent_shape.h"
#include "kernels/indexer.h"
#include "tests/kernels/kernel_test.h"

namespace winnow {
namespace {

class LatentRowsTest : public KernelTest {};
WINNOW_FOR_EACH_TABLE(LatentRowsTest);

// The same keys as rows [key, index key] and as rows [key, key].
struct Rows {
  Rows(int head_dim, int index_dim, int count, Dtype dtype) : layout{.value_is_key = true, .index_dim = index_dim} {
    std::mt19937 random(static_cast<unsigned>(head_dim + count));
    std::vector<float> latent_values, plain_values;
    for (int row = 0; row < count; ++row) {
      const std::vector<float> key = RandomFloats(random, static_cast<size_t>(head_dim));
      const std::vector<float> index_key(static_cast<size_t>(index_dim), kPoison);
      latent_values.insert(latent_values.end(), key.begin(), key.end());
      latent_values.insert(latent_values.end(), index_key.begin(), index_key.end());
      plain_values.insert(plain_values.end(), key.begin(), key.end());
      plain_values.insert(plain_values.end(), key.begin(), key.end());
    }
    latent = Typed(latent_values, dtype);
    plain = Typed(plain_values, dtype);
    latent_bytes = layout.elements(head_dim) * DtypeBytes(dtype);
    plain_bytes = RowLayout().elements(head_dim) * DtypeBytes(dtype);
  }

  const RowLayout layout;
  TypedArray latent, plain;
  size_t latent_bytes = 0, plain_bytes = 0;
};

std::vector<const void*> BlocksOf(const TypedArray& rows, size_t row_bytes) {
  std::vector<const void*> blocks;
  for (size_t at = 0; at < rows.bytes.size(); at += kBlockTokens * row_bytes) blocks.push_back(rows.bytes.data() + at);
  return blocks;
}

TEST_P(LatentRowsTest, AttentionGivesTheBitsOfRowsThatHoldTheKeyTwice) {
  constexpr int kHeads = 5, kCount = 640;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (const int head_dim : {48, 64, 576}) {
      SCOPED_TRACE(testing::Message() << DtypeName(dtype) << " key of " << head_dim);
      const Rows rows(head_dim, head_dim == 64 ? 0 : 32, kCount, dtype);
      std::mt19937 random(3);
      const int queries = 7;
      const std::vector<float> q = RandomFloats(random, static_cast<size_t>(queries) * kHeads * head_dim);
      const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
      std::vector<uint32_t> slots;
      for (uint32_t slot = 1; slot < kCount; slot += 1 + slot % 3) slots.push_back(slot);

      const auto decode = [&](const TypedArray& pool, const RowLayout& layout) {
        const uint32_t* const lists[] = {slots.data()};
        const auto count = static_cast<uint32_t>(slots.size());
        std::vector<float> out(static_cast<size_t>(kHeads) * head_dim, kPoison);
        std::vector<uint8_t> scratch(DecodeAttentionScratchBytes(slots.size() * kHeads, kHeads, head_dim));
        kernels().decode_attention(executor(2), {.q = q.data(),
                                                 .num_rows = 1,
                                                 .num_query_heads = kHeads,
                                                 .num_kv_heads = 1,
                                                 .head_dim = head_dim,
                                                 .scale = scale,
                                                 .slot_pool = pool.data(),
                                                 .kv_dtype = dtype,
                                                 .row = layout,
                                                 .slots = lists,
                                                 .slot_counts = &count,
                                                 .out = out.data(),
                                                 .scratch = scratch.data()});
        return out;
      };
      EXPECT_TRUE(SameBits(decode(rows.latent, rows.layout), decode(rows.plain, {})));

      const auto prefill = [&](const TypedArray& kv, const RowLayout& layout) {
        std::vector<float> out(q.size(), kPoison);
        kernels().prefill_attention(executor(2), {.q = q.data(),
                                                  .num_queries = queries,
                                                  .first_position = kCount - queries,
                                                  .num_query_heads = kHeads,
                                                  .num_kv_heads = 1,
                                                  .head_dim = head_dim,
                                                  .scale = scale,
                                                  .kv = kv.data(),
                                                  .kv_head_stride = kCount,
                                                  .kv_dtype = dtype,
                                                  .row = layout,
                                                  .out = out.data()});
        return out;
      };
      EXPECT_TRUE(SameBits(prefill(rows.latent, rows.layout), prefill(rows.plain, {})));

      const auto prefix = [&](const TypedArray& kv, size_t row_bytes, const RowLayout& layout) {
        const std::vector<const void*> blocks = BlocksOf(kv, row_bytes);
        std::vector<float> states(static_cast<size_t>(queries) * kHeads * PrefillStateFloats(head_dim), kPoison);
        std::vector<uint8_t> scratch(PrefixAttentionScratchBytes(head_dim));
        kernels().prefix_attention({.q = q.data(),
                                    .q_stride = int64_t{kHeads} * head_dim,
                                    .num_queries = queries,
                                    .group_size = kHeads,
                                    .head_dim = head_dim,
                                    .scale = scale,
                                    .blocks = blocks.data(),
                                    .kv_dtype = dtype,
                                    .row = layout,
                                    .end_key = 512,
                                    .state = states.data(),
                                    .state_stride = int64_t{kHeads} * PrefillStateFloats(head_dim),
                                    .scratch = scratch.data()});
        return states;
      };
      EXPECT_TRUE(
          SameBits(prefix(rows.latent, rows.latent_bytes, rows.layout), prefix(rows.plain, rows.plain_bytes, {})));

      const auto attend = [&](const TypedArray& kv, size_t row_bytes, const RowLayout& layout) {
        const std::vector<const void*> blocks = BlocksOf(kv, row_bytes);
        std::vector<float> state(static_cast<size_t>(kHeads) * (head_dim + 1), kPoison);
        std::vector<uint8_t> scratch(AttendBlocksScratchBytes(kHeads, head_dim));
        kernels().attend_blocks({.q = q.data(),
                                 .num_queries = kHeads,
                                 .head_dim = head_dim,
                                 .scale = scale,
                                 .blocks = blocks.data(),
                                 .kv_dtype = dtype,
                                 .row = layout,
                                 .positions = slots.data(),
                                 .num_rows = static_cast<uint32_t>(slots.size()),
                                 .o = state.data(),
                                 .lse = state.data() + kHeads * head_dim,
                                 .scratch = scratch.data()});
        return state;
      };
      EXPECT_TRUE(
          SameBits(attend(rows.latent, rows.latent_bytes, rows.layout), attend(rows.plain, rows.plain_bytes, {})));
    }
  }
}

// A row's key times a completed query is what a head of latent and turning part gives, turned by complex numbers.
TEST_P(LatentRowsTest, RowsAndQueriesMeetAsPublished) {
  constexpr int kRank = 32, kRope = 16, kNope = 24, kHeads = 3, kRows = 5, kIndexDim = 20;
  const LatentShape shape{.rank = kRank, .rope_dim = kRope};
  std::mt19937 random(5);
  const std::vector<float> projected = RandomFloats(random, kRows * (kRank + kRope));
  const std::vector<float> heads = RandomFloats(random, kRows * kHeads * (kNope + kRope));
  const std::vector<float> index_keys = RandomFloats(random, kRows * kIndexDim);
  const std::vector<float> norm = RandomFloats(random, kRank), index_norm = RandomFloats(random, kIndexDim),
                           index_bias = RandomFloats(random, kIndexDim);
  const std::vector<uint32_t> positions = {0, 3, 77, 900, 4000};
  std::vector<float> frequencies;
  for (int i = 0; i < kRope / 2; ++i) frequencies.push_back(std::pow(100.0f, -static_cast<float>(i) / 8));
  const RowLayout layout{.value_is_key = true, .index_dim = kIndexDim};
  const auto turned = [&](const float* stored, uint32_t position, bool interleaved, double factor) {
    std::vector<double> out(kRope);
    for (int i = 0; i < kRope / 2; ++i) {
      const double angle = static_cast<float>(position) * frequencies[i];
      const double a = stored[interleaved ? 2 * i : i], b = stored[interleaved ? 2 * i + 1 : i + kRope / 2];
      out[i] = factor * (a * std::cos(angle) - b * std::sin(angle));
      out[i + kRope / 2] = factor * (b * std::cos(angle) + a * std::sin(angle));
    }
    return out;
  };
  for (const bool interleaved : {false, true}) {
    std::vector<float> kv(kRows * layout.elements(shape.key_dim()), kPoison);
    kernels().latent_append(executor(2), {.projected = projected.data(),
                                          .stride = kRank + kRope,
                                          .num_rows = kRows,
                                          .norm_weight = norm.data(),
                                          .norm_epsilon = 1e-6f,
                                          .shape = shape,
                                          .interleaved = interleaved,
                                          .positions = positions.data(),
                                          .rope_inv_freq = frequencies.data(),
                                          .rope_attention_factor = 1.2f,
                                          .index_keys = index_keys.data(),
                                          .index_norm_weight = index_norm.data(),
                                          .index_norm_bias = index_bias.data(),
                                          .index_interleaved = interleaved,
                                          .row = layout,
                                          .kv_dtype = Dtype::kF32,
                                          .kv_rows = kv.data()});
    std::vector<float> pre_rope(kRows * kHeads * shape.key_dim(), 0.5f), q(pre_rope.size(), kPoison);
    kernels().latent_queries(executor(3), {.heads = heads.data(),
                                           .num_rows = kRows,
                                           .num_heads = kHeads,
                                           .nope_dim = kNope,
                                           .shape = shape,
                                           .interleaved = interleaved,
                                           .positions = positions.data(),
                                           .rope_inv_freq = frequencies.data(),
                                           .q_pre_rope = pre_rope.data(),
                                           .q = q.data()});
    for (int row = 0; row < kRows; ++row) {
      const float* const stored = projected.data() + row * (kRank + kRope);
      const float* const key = kv.data() + row * layout.elements(shape.key_dim());
      double square = 0;
      for (int i = 0; i < kRank; ++i) square += double{stored[i]} * stored[i] / kRank;
      const std::vector<double> key_part = turned(stored + kRank, positions[row], interleaved, 1.2 * 1.2);
      for (int i = 0; i < kRank; ++i) {
        EXPECT_NEAR(key[shape.latent_place(i)], stored[i] / std::sqrt(square + 1e-6) * norm[i], 1e-5);
      }
      for (int i = 0; i < kRope; ++i) EXPECT_NEAR(key[shape.rope_place(i)], key_part[i], 2e-3);
      for (int head = 0; head < kHeads; ++head) {
        const size_t at = static_cast<size_t>(row) * kHeads + head;
        const std::vector<double> part =
            turned(heads.data() + at * (kNope + kRope) + kNope, positions[row], interleaved, 1);
        for (int i = 0; i < kRope; ++i) EXPECT_NEAR(q[at * shape.key_dim() + shape.rope_place(i)], part[i], 2e-3);
        for (int i = 0; i < kRank; ++i) EXPECT_EQ(q[at * shape.key_dim() + shape.latent_place(i)], 0.5f);
      }
      const float* const of_index = index_keys.data() + row * kIndexDim;
      double mean = 0, variance = 0;
      for (int i = 0; i < kIndexDim; ++i) mean += of_index[i] / double{kIndexDim};
      for (int i = 0; i < kIndexDim; ++i) variance += (of_index[i] - mean) * (of_index[i] - mean) / kIndexDim;
      std::vector<float> normed;
      for (int i = 0; i < kIndexDim; ++i) {
        normed.push_back(
            static_cast<float>((of_index[i] - mean) / std::sqrt(variance + 1e-6) * index_norm[i] + index_bias[i]));
      }
      const std::vector<double> index_part = turned(normed.data(), positions[row], interleaved, 1.2f);
      const float* const index_key = key + layout.index_offset(shape.key_dim());
      for (int i = 0; i < kRope; ++i) EXPECT_NEAR(index_key[i], index_part[i], 4e-3);
      for (int i = kRope; i < kIndexDim; ++i) EXPECT_NEAR(index_key[i], normed[i], 1e-4);
    }
  }
}

TEST_P(LatentRowsTest, TheIndexerAddsUpWhatItsHeadsFindAboveZero) {
  constexpr int kDim = 32, kHeads = 3, kKeys = 1100, kHeadDim = 48;
  const RowLayout layout{.value_is_key = true, .index_dim = kDim};
  std::mt19937 random(11);
  const size_t elements = layout.elements(kHeadDim), offset = layout.index_offset(kHeadDim);
  const std::vector<float> rows = RandomFloats(random, kKeys * elements);
  const size_t tile_bytes = IndexTileBytes(kDim, Dtype::kF32);
  AlignedBytes storage((kKeys / kBlockTokens + 1) * tile_bytes);
  std::vector<const void*> tiles;
  for (int first = 0; first < kKeys; first += kBlockTokens) {
    char* const tile = static_cast<char*>(storage.data()) + tiles.size() * tile_bytes;
    tiles.push_back(tile);
    kernels().index_keys({.rows = rows.data() + first * elements + offset,
                          .row_elements = static_cast<int>(elements),
                          .num_rows = std::min(kBlockTokens, kKeys - first),
                          .head_dim = kDim,
                          .dtype = Dtype::kF32,
                          .tile = tile});
  }
  const std::vector<float> queries = RandomFloats(random, kHeads * (kDim + 1));
  std::vector<float> scores(kKeys, kPoison), scratch(IndexerScratchFloats(kHeads));
  ScoreByIndexer(kernels(), {.tiles = tiles.data(),
                             .num_keys = kKeys,
                             .head_dim = kDim,
                             .dtype = Dtype::kF32,
                             .queries = queries.data(),
                             .num_heads = kHeads,
                             .scores = scores.data(),
                             .scratch = scratch.data()});
  for (int key = 0; key < kKeys; ++key) {
    double expected = 0;
    for (int head = 0; head < kHeads; ++head) {
      double dot = 0;
      for (int i = 0; i < kDim; ++i) dot += double{queries[head * kDim + i]} * rows[key * elements + offset + i];
      expected += queries[kHeads * kDim + head] * std::max(dot, 0.0);
    }
    ASSERT_NEAR(scores[key], expected, 1e-4) << key;
  }
}

}  // namespace
}  // namespace winnow
