#include <numeric>

#include "common/base/kv_layout.h"
#include "tests/kernels/attention_reference.h"
#include "tests/kernels/kernel_test.h"

namespace winnow {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class AttendBlocksTest : public KernelTest {};
WINNOW_FOR_EACH_TABLE(AttendBlocksTest);

// Rows of one (layer, kv head) in blocks that lie in any order; rows that no list may name hold NaN.
struct Stored {
  Stored(std::mt19937& random, const std::vector<uint32_t>& readable, uint32_t num_positions, int head_dim, Dtype dtype)
      : head_dim(head_dim) {
    const uint32_t num_blocks = (num_positions + kBlockTokens - 1) / kBlockTokens;
    std::vector<uint32_t> place(num_blocks);
    std::iota(place.begin(), place.end(), 0u);
    std::shuffle(place.begin(), place.end(), random);
    const size_t row_bytes = RowBytes(head_dim, dtype);
    bytes.assign(num_blocks * kBlockTokens * row_bytes, 0xff);
    for (uint32_t b = 0; b < num_blocks; ++b) blocks.push_back(bytes.data() + place[b] * kBlockTokens * row_bytes);
    values.resize(num_positions);
    for (uint32_t position : readable) {
      const TypedArray row = TypedRows(RandomFloats(random, 2 * head_dim), head_dim, dtype);
      values[position] = row.values;
      std::memcpy(const_cast<uint8_t*>(static_cast<const uint8_t*>(blocks[position / 32])) + position % 32 * row_bytes,
                  row.bytes.data(), row_bytes);
    }
  }

  int head_dim;
  std::vector<uint8_t> bytes;
  std::vector<const void*> blocks;
  std::vector<std::vector<float>> values;  // by position
};

struct State {
  std::vector<float> o, lse;
};

State AttendBlocks(const KernelTable& kernels, const Stored& stored, Dtype dtype,
                   const std::vector<uint32_t>& positions, const std::vector<float>& q, float scale) {
  const int num_queries = static_cast<int>(q.size()) / stored.head_dim;
  const size_t scratch_bytes = AttendBlocksScratchBytes(num_queries, stored.head_dim);
  std::vector<uint8_t> scratch(scratch_bytes + 64, 0xff);
  State state{std::vector<float>(q.size() + 16, kPoison), std::vector<float>(num_queries + 1, kPoison)};
  kernels.attend_blocks({.q = q.data(),
                         .num_queries = num_queries,
                         .head_dim = stored.head_dim,
                         .scale = scale,
                         .blocks = stored.blocks.data(),
                         .kv_dtype = dtype,
                         .positions = positions.data(),
                         .num_rows = static_cast<uint32_t>(positions.size()),
                         .o = state.o.data(),
                         .lse = state.lse.data(),
                         .scratch = scratch.data()});
  for (size_t i = scratch_bytes; i < scratch.size(); ++i) EXPECT_EQ(scratch[i], 0xff) << "wrote past the scratch";
  for (size_t i = q.size(); i < state.o.size(); ++i) EXPECT_TRUE(std::isnan(state.o[i]));
  EXPECT_TRUE(std::isnan(state.lse.back()));
  state.o.resize(q.size());
  state.lse.resize(num_queries);
  return state;
}

// `count` of [0, num_positions), ascending.
std::vector<uint32_t> Choose(std::mt19937& random, uint32_t num_positions, uint32_t count) {
  std::vector<uint32_t> positions(num_positions);
  std::iota(positions.begin(), positions.end(), 0u);
  std::shuffle(positions.begin(), positions.end(), random);
  positions.resize(count);
  std::sort(positions.begin(), positions.end());
  return positions;
}

TEST_P(AttendBlocksTest, MatchesDoubles) {
  struct Shape {
    uint32_t positions, count;
    int head_dim, queries;
  };
  std::vector<Shape> shapes;
  for (int head_dim : {2, 16, 24, 32, 64, 80, 96, 128, 256}) shapes.push_back({400, 300, head_dim, 4});
  for (int queries : {1, 2, 3, 5, 8, 10}) shapes.push_back({300, 70, 64, queries});
  for (uint32_t count : {1u, 15u, 16u, 17u, 63u, 64u, 65u, 255u, 256u, 257u, 512u, 700u})
    shapes.push_back({700, count, 64, 4});
  shapes.push_back({5000, 4990, 64, 4});
  std::mt19937 random(1);
  for (Dtype dtype : kRowDtypes) {
    for (const Shape& s : shapes) {
      const std::vector<uint32_t> positions = Choose(random, s.positions, s.count);
      const Stored stored(random, positions, s.positions, s.head_dim, dtype);
      const std::vector<float> q = RandomFloats(random, s.queries * s.head_dim, 2);
      const float scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
      const State state = AttendBlocks(kernels(), stored, dtype, positions, q, scale);
      std::vector<const float*> rows;
      for (uint32_t position : positions) rows.push_back(stored.values[position].data());
      for (int h = 0; h < s.queries; ++h) {
        const AttentionReference ref = Attend(&q[h * s.head_dim], rows, s.head_dim, scale);
        const double relative = RelativeTolerance(ref, dtype, s.head_dim, rows.size());
        for (int d = 0; d < s.head_dim; ++d) {
          ASSERT_NEAR(state.o[h * s.head_dim + d], ref.out[d], relative * ref.mass[d] + 1e-6)
              << DtypeName(dtype) << " head_dim " << s.head_dim << " rows " << s.count << " query " << h;
        }
        ASSERT_NEAR(state.lse[h], ref.lse, relative + 4 * kF32Epsilon * std::fabs(ref.lse));
      }
    }
  }
}

TEST_P(AttendBlocksTest, NothingIsTheEmptyState) {
  std::mt19937 random(2);
  const Stored stored(random, {}, 32, 64, Dtype::kBf16);
  const State state = AttendBlocks(kernels(), stored, Dtype::kBf16, {}, RandomFloats(random, 3 * 64), 0.125f);
  EXPECT_EQ(state.o, std::vector<float>(3 * 64, 0.0f));
  EXPECT_EQ(state.lse, std::vector<float>(3, -kInfinity));
}

// Where blocks lie, and what is asked beside a query, do not matter.
TEST_P(AttendBlocksTest, BitsDependOnQueryAndListAlone) {
  constexpr int kHeadDim = 64, kQueries = 7;
  for (Dtype dtype : kRowDtypes) {
    std::mt19937 random(3);
    const std::vector<uint32_t> positions = Choose(random, 900, 600);
    const std::vector<float> q = RandomFloats(random, kQueries * kHeadDim);
    std::mt19937 same_rows = random;
    const Stored stored(random, positions, 900, kHeadDim, dtype);
    Stored elsewhere(same_rows, positions, 900, kHeadDim, dtype);
    const std::vector<uint8_t> moved = elsewhere.bytes;  // the same blocks at other addresses
    for (const void*& block : elsewhere.blocks) {
      block = moved.data() + (static_cast<const uint8_t*>(block) - elsewhere.bytes.data());
    }
    const State together = AttendBlocks(kernels(), stored, dtype, positions, q, 0.125f);
    for (int h = 0; h < kQueries; ++h) {
      const std::vector<float> query(&q[h * kHeadDim], &q[h * kHeadDim] + kHeadDim);
      const State alone = AttendBlocks(kernels(), elsewhere, dtype, positions, query, 0.125f);
      EXPECT_EQ(alone.lse[0], together.lse[h]);
      EXPECT_TRUE(SameBits(alone.o, {&together.o[h * kHeadDim], &together.o[h * kHeadDim] + kHeadDim}));
    }
  }
}

// Two lists that share out the rows, merged, are attention over all of them.
TEST_P(AttendBlocksTest, StatesMerge) {
  constexpr int kHeadDim = 96, kQueries = 5;
  std::mt19937 random(4);
  const std::vector<uint32_t> all = Choose(random, 1000, 900);
  const Stored stored(random, all, 1000, kHeadDim, Dtype::kBf16);
  const std::vector<float> q = RandomFloats(random, kQueries * kHeadDim);
  std::vector<uint32_t> parts[2];
  for (uint32_t position : all) parts[random() % 3 == 0].push_back(position);
  const State states[] = {AttendBlocks(kernels(), stored, Dtype::kBf16, parts[0], q, 0.1f),
                          AttendBlocks(kernels(), stored, Dtype::kBf16, parts[1], q, 0.1f)};
  const State whole = AttendBlocks(kernels(), stored, Dtype::kBf16, all, q, 0.1f);
  const float* o[] = {states[0].o.data(), states[1].o.data()};
  const float* lse[] = {states[0].lse.data(), states[1].lse.data()};
  std::vector<float> merged(q.size(), kPoison), merged_lse(kQueries, kPoison);
  kernels().merge_states({o, lse, 2, kQueries, kHeadDim, merged.data(), merged_lse.data()});
  // Sums of 900 weighted values of size one, each rounded as it is added.
  for (size_t i = 0; i < q.size(); ++i) ASSERT_NEAR(merged[i], whole.o[i], 2 * 900 * 4 * kF32Epsilon);
  for (int h = 0; h < kQueries; ++h) ASSERT_NEAR(merged_lse[h], whole.lse[h], 2 * 900 * kF32Epsilon);
}

}  // namespace
}  // namespace winnow
