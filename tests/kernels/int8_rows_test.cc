// Rows of int8: what is written, and how their keys are scored where they lie. That attention reads them is in the
// tests of attention.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/kv_layout.h"
#include "tests/kernels/kernel_test.h"
#include "tests/kernels/key_tiles.h"

namespace winnow {
namespace {

class Int8RowsTest : public KernelTest {
 protected:
  static constexpr int kQueryHeads = 4, kKvHeads = 2;

  // Rows of every position, as rope_append writes them from these projections.
  std::vector<uint8_t> Append(const std::vector<float>& qkv, int head_dim, const std::vector<uint32_t>& positions,
                              Dtype dtype, int first, int count) {
    const size_t floats = (kQueryHeads + 2 * kKvHeads) * static_cast<size_t>(head_dim);
    std::vector<float> inv_freq(head_dim / 2), q(static_cast<size_t>(count) * kQueryHeads * head_dim);
    for (int i = 0; i < head_dim / 2; ++i) inv_freq[i] = std::pow(1e4f, -2.0f * i / head_dim);
    std::vector<uint8_t> rows(count * kKvHeads * RowBytes(head_dim, dtype) + 8, 0x5a);
    RopeAppendParams params;
    params.qkv = qkv.data() + first * floats;
    params.qkv_stride = static_cast<int64_t>(floats);
    params.num_rows = count;
    params.num_query_heads = kQueryHeads;
    params.num_kv_heads = kKvHeads;
    params.head_dim = head_dim;
    params.positions = positions.data() + first;
    params.rope_inv_freq = inv_freq.data();
    params.kv_dtype = dtype;
    params.q = q.data();
    params.kv_rows = rows.data();
    kernels().rope_append(executor(2), params);
    EXPECT_EQ(std::count(rows.end() - 8, rows.end(), 0x5a), 8) << "wrote past the rows";
    rows.resize(rows.size() - 8);
    return rows;
  }
};
WINNOW_FOR_EACH_TABLE(Int8RowsTest);

float FloatAt(const uint8_t* bytes) {
  float value;
  std::memcpy(&value, bytes, 4);
  return value;
}

TEST(Int8Row, Layout) {
  const RowLayout row;
  EXPECT_EQ(row.bytes(128, Dtype::kI8), 264u);
  EXPECT_EQ(row.value_offset_bytes(128, Dtype::kI8), 128u);
  EXPECT_EQ(row.scales_offset_bytes(128, Dtype::kI8), 256u);
  EXPECT_EQ(row.bytes(128, Dtype::kBf16), 512u);
  // Of one token of 40 layers and 8 kv heads: rows, their checksums, and page bounds of 16 rows in 8 bits.
  const size_t lists = 40 * 8;
  const size_t pages = IndexTileBytes(2 * 128, Dtype::kI8) / kBlockTokens / 16;
  EXPECT_LE(lists * (row.bytes(128, Dtype::kI8) + sizeof(uint32_t) + pages), 92'000u);
}

// Keys and values are within half a step of what f32 rows hold, a step being the 127th of the largest magnitude of the
// key, or of the value, alone.
TEST_P(Int8RowsTest, ElementsAreWithinHalfAStep) {
  std::mt19937 random(1);
  const std::vector<uint32_t> positions = {0, 1, 500, 16383, 100000};
  for (int head_dim : {2, 6, 16, 30, 64, 96, 128, 256}) {
    std::vector<float> qkv = RandomFloats(random, positions.size() * (kQueryHeads + 2 * kKvHeads) * head_dim);
    for (size_t i = 0; i < qkv.size(); i += 13) qkv[i] *= 40;  // channels far above the others
    const auto count = static_cast<int>(positions.size());
    const std::vector<uint8_t> rows = Append(qkv, head_dim, positions, Dtype::kI8, 0, count);
    const std::vector<uint8_t> exact = Append(qkv, head_dim, positions, Dtype::kF32, 0, count);
    for (int row = 0; row < count * kKvHeads; ++row) {
      for (int half = 0; half < 2; ++half) {
        const uint8_t* codes = &rows[row * RowBytes(head_dim, Dtype::kI8)];
        const float scale = FloatAt(codes + 2 * head_dim + 4 * half);
        double largest = 0;
        for (int d = 0; d < head_dim; ++d) {
          const size_t element = static_cast<size_t>(row) * 2 * head_dim + half * head_dim + d;
          const double value = FloatAt(&exact[4 * element]);
          const auto code = static_cast<int8_t>(codes[half * head_dim + d]);
          largest = std::max(largest, std::fabs(value));
          ASSERT_LE(std::abs(code), 127);
          // Half a step, and three roundings of at most 127 steps.
          ASSERT_NEAR(code, value / scale, 0.5 + 127 * 4 * kF32Epsilon) << "head_dim " << head_dim;
        }
        ASSERT_NEAR(scale, largest / 127, largest * kF32Epsilon);
      }
    }
  }
}

TEST_P(Int8RowsTest, ARowsBitsDependOnThatRowAlone) {
  std::mt19937 random(2);
  constexpr int kHeadDim = 64, kRows = 37;
  std::vector<uint32_t> positions(kRows);
  std::iota(positions.begin(), positions.end(), 100u);
  const std::vector<float> qkv = RandomFloats(random, kRows * (kQueryHeads + 2 * kKvHeads) * kHeadDim, 3);
  const std::vector<uint8_t> together = Append(qkv, kHeadDim, positions, Dtype::kI8, 0, kRows);
  std::vector<uint8_t> alone;
  for (int row = 0; row < kRows; ++row) {
    const std::vector<uint8_t> one = Append(qkv, kHeadDim, positions, Dtype::kI8, row, 1);
    alone.insert(alone.end(), one.begin(), one.end());
  }
  EXPECT_EQ(alone, together);
}

TEST_P(Int8RowsTest, KeysOfNothingAndOfWhatIsNoNumber) {
  constexpr int kHeadDim = 16;
  std::vector<float> qkv((kQueryHeads + 2 * kKvHeads) * kHeadDim, 0);
  qkv[(kQueryHeads + 1) * kHeadDim + 3] = kPoison;  // the key of kv head 1
  const std::vector<uint8_t> rows = Append(qkv, kHeadDim, {5}, Dtype::kI8, 0, 1);
  const size_t row_bytes = RowBytes(kHeadDim, Dtype::kI8);
  EXPECT_EQ(std::vector<uint8_t>(rows.begin(), rows.begin() + row_bytes), std::vector<uint8_t>(row_bytes)) << "zeros";
  EXPECT_TRUE(std::isnan(FloatAt(&rows[row_bytes + 2 * kHeadDim]))) << "the loss shows in what attends to it";
  EXPECT_EQ(FloatAt(&rows[row_bytes + 2 * kHeadDim + 4]), 0);
}

// Blocks of rows, and tiles of their codes.
struct StoredRows {
  StoredRows(std::mt19937& random, int num_keys, int head_dim) : head_dim(head_dim) {
    const size_t row_bytes = RowBytes(head_dim, Dtype::kI8);
    const int num_blocks = (num_keys + kBlockTokens - 1) / kBlockTokens;
    const TypedArray typed =
        TypedRows(RandomFloats(random, static_cast<size_t>(num_keys) * 2 * head_dim, 2), head_dim, Dtype::kI8);
    bytes.assign(num_blocks * kBlockTokens * row_bytes, 0xff);
    std::copy(typed.bytes.begin(), typed.bytes.end(), bytes.begin());
    // A key that is no number, and one whose scale is infinite, count as zero.
    for (const auto& [key, scale] : {std::pair{3, kPoison}, {20, std::numeric_limits<float>::infinity()}}) {
      if (key < num_keys) std::memcpy(&bytes[key * row_bytes + 2 * head_dim], &scale, 4);
    }
    const size_t tile_bytes = IndexTileBytes(head_dim, Dtype::kI8);
    tile_memory = std::make_unique<AlignedBytes>(num_blocks * tile_bytes);
    for (int b = 0; b < num_blocks; ++b) {
      blocks.push_back(&bytes[b * kBlockTokens * row_bytes]);
      tiles.push_back(static_cast<char*>(tile_memory->data()) + b * tile_bytes);
      for (int row = b * kBlockTokens; row < std::min(num_keys, (b + 1) * kBlockTokens); ++row) {
        auto* const tile = static_cast<uint8_t*>(const_cast<void*>(tiles.back()));
        const uint8_t* const from = &bytes[row * row_bytes];
        for (int d = 0; d < head_dim; ++d) tile[(d / 4 * kBlockTokens + row % kBlockTokens) * 4 + d % 4] = from[d];
        const float stored = FloatAt(from + 2 * head_dim), scale = std::isfinite(stored) ? stored : 0;
        std::memcpy(tile + (head_dim + 3) / 4 * 4 * kBlockTokens + row % kBlockTokens * 4, &scale, 4);
      }
    }
  }

  int head_dim;
  std::vector<uint8_t> bytes;
  std::unique_ptr<AlignedBytes> tile_memory;
  std::vector<const void*> blocks, tiles;
};

std::vector<float> Scores(const KernelTable& kernels, const StoredRows& rows, bool in_rows, int num_keys,
                          const std::vector<float>& queries, const std::vector<uint32_t>& groups) {
  const int num_queries = static_cast<int>(queries.size()) / rows.head_dim;
  const int64_t stride = (num_keys + 31) / 32 * 32 + 16;
  std::vector<float> padded(num_queries * stride, kPoison), scores;
  kernels.key_score({.tiles = in_rows ? rows.blocks.data() : rows.tiles.data(),
                     .num_keys = num_keys,
                     .head_dim = rows.head_dim,
                     .dtype = Dtype::kI8,
                     .in_rows = in_rows,
                     .queries = queries.data(),
                     .num_queries = num_queries,
                     .scale = 0.125f,
                     .scores = padded.data(),
                     .scores_stride = stride,
                     .groups = groups.empty() ? nullptr : groups.data()});
  for (int i = 0; i < num_queries; ++i) {
    scores.insert(scores.end(), padded.begin() + i * stride, padded.begin() + i * stride + num_keys);
    for (int64_t j = stride - 16; j < stride; ++j) EXPECT_TRUE(std::isnan(padded[i * stride + j]));
  }
  return scores;
}

TEST_P(Int8RowsTest, KeysInRowsHaveTheScoresOfTheirTiles) {
  std::mt19937 random(3);
  for (auto [num_keys, head_dim, num_queries] : {std::tuple{1, 64, 1},
                                                 {15, 64, 5},
                                                 {16, 128, 5},
                                                 {33, 2, 3},
                                                 {77, 6, 4},
                                                 {97, 30, 4},
                                                 {300, 80, 7},
                                                 {513, 64, 9},
                                                 {1000, 128, 5},
                                                 {1500, 192, 33},
                                                 {200, 1024, 2}}) {
    const StoredRows rows(random, num_keys, head_dim);
    const std::vector<float> queries = RandomFloats(random, static_cast<size_t>(num_queries) * head_dim);
    ASSERT_TRUE(SameBits(Scores(kernels(), rows, true, num_keys, queries, {}),
                         Scores(kernels(), rows, false, num_keys, queries, {})))
        << num_keys << " keys, head_dim " << head_dim;
    std::vector<uint32_t> groups(num_keys / kKeyGroup);
    std::iota(groups.begin(), groups.end(), 0u);
    std::shuffle(groups.begin(), groups.end(), random);
    groups.resize((groups.size() + 1) / 2);
    if (groups.empty()) continue;
    const int chosen = static_cast<int>(groups.size()) * kKeyGroup;
    ASSERT_TRUE(SameBits(Scores(kernels(), rows, true, chosen, queries, groups),
                         Scores(kernels(), rows, false, chosen, queries, groups)))
        << groups.size() << " groups, head_dim " << head_dim;
  }
}

TEST_P(Int8RowsTest, KeysInRowsHaveTheSoftmaxesOfTheirTiles) {
  std::mt19937 random(4);
  constexpr int kHeadDim = 64, kQueries = 5;
  for (const int num_keys : {5, 64, 512, 513, 1700}) {
    const StoredRows rows(random, num_keys, kHeadDim);
    const std::vector<float> queries = RandomFloats(random, kQueries * kHeadDim, 4);
    const int64_t stride = (num_keys + 31) / 32 * 32 + 16;
    const size_t runs = kQueries * SoftmaxRuns(num_keys);
    std::vector<float> of[2];
    for (const bool in_rows : {true, false}) {
      std::vector<float> weights(kQueries * stride, kPoison), scales(runs), lse(kQueries), scratch(runs);
      kernels().key_softmax({.score = {.tiles = in_rows ? rows.blocks.data() : rows.tiles.data(),
                                       .num_keys = num_keys,
                                       .head_dim = kHeadDim,
                                       .dtype = Dtype::kI8,
                                       .in_rows = in_rows,
                                       .queries = queries.data(),
                                       .num_queries = kQueries,
                                       .scale = 0.125f,
                                       .scores = weights.data(),
                                       .scores_stride = stride},
                             .run_scales = scales.data(),
                             .lse = lse.data(),
                             .scratch = scratch.data()});
      for (int i = 0; i < kQueries; ++i) {
        of[in_rows].insert(of[in_rows].end(), &weights[i * stride], &weights[i * stride] + num_keys);
      }
      of[in_rows].insert(of[in_rows].end(), scales.begin(), scales.end());
      of[in_rows].insert(of[in_rows].end(), lse.begin(), lse.end());
    }
    ASSERT_TRUE(SameBits(of[true], of[false])) << num_keys << " keys";
  }
}

// Tiles beside a slower tier hold what their rows do.
TEST_P(Int8RowsTest, TilesTakeTheCodesOfRows) {
  std::mt19937 random(5);
  for (int head_dim : {2, 6, 30, 64, 128}) {
    const StoredRows rows(random, kBlockTokens, head_dim);
    std::vector<uint8_t> tile(IndexTileBytes(head_dim, Dtype::kI8));
    for (const auto& [first, count] : {std::pair{0, 7}, {7, 16}, {23, 9}}) {
      kernels().index_keys({.rows = &rows.bytes[first * RowBytes(head_dim, Dtype::kI8)],
                            .row_elements = static_cast<int>(RowBytes(head_dim, Dtype::kI8)),
                            .num_rows = count,
                            .first_row = first,
                            .head_dim = head_dim,
                            .dtype = Dtype::kI8,
                            .tile = tile.data(),
                            .tile_dtype = Dtype::kI8});
    }
    EXPECT_EQ(std::memcmp(tile.data(), rows.tiles[0], tile.size()), 0) << "head_dim " << head_dim;
  }
}

}  // namespace
}  // namespace winnow
