#include <algorithm>
#include <numeric>

#include "common/base/kv_layout.h"
#include "tests/kernels/kernel_test.h"

namespace winnow {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class RowsTest : public KernelTest {};
WINNOW_FOR_EACH_TABLE(RowsTest);

TEST_P(RowsTest, GatherTakesRowsOutOfBlocks) {
  std::mt19937 random(9);
  for (size_t row_bytes : {size_t{8}, size_t{64}, size_t{100}, size_t{256}, size_t{512}, size_t{1024}}) {
    std::vector<std::vector<uint8_t>> blocks(5, std::vector<uint8_t>(kBlockTokens * row_bytes));
    std::vector<const void*> pointers;
    for (auto& block : blocks) {
      for (uint8_t& byte : block) byte = static_cast<uint8_t>(random());
      pointers.push_back(block.data());
    }
    std::vector<uint32_t> positions = {0, 31, 32, 159, 64, 64, 5};
    std::vector<uint8_t> out(positions.size() * row_bytes + 64, 0xee);
    kernels().gather_rows(
        {pointers.data(), positions.data(), static_cast<uint32_t>(positions.size()), row_bytes, out.data()});
    for (size_t i = 0; i < positions.size(); ++i) {
      const uint8_t* row = blocks[positions[i] / 32].data() + positions[i] % 32 * row_bytes;
      ASSERT_EQ(std::memcmp(&out[i * row_bytes], row, row_bytes), 0);
    }
    ASSERT_EQ(std::count(out.end() - 64, out.end(), 0xee), 64);
    kernels().gather_rows({pointers.data(), positions.data(), 0, row_bytes, nullptr});
  }
}

TEST_P(RowsTest, ScatterPutsRowsIntoSlots) {
  std::mt19937 random(10);
  for (size_t row_bytes : {size_t{8}, size_t{64}, size_t{100}, size_t{256}, size_t{1024}}) {
    const std::vector<uint32_t> slots = {9, 0, 3, 7};
    std::vector<uint8_t> rows(slots.size() * row_bytes);
    for (uint8_t& byte : rows) byte = static_cast<uint8_t>(random());
    std::vector<uint8_t> pool(10 * row_bytes, 0xee);
    std::vector<uint8_t> expected = pool;
    for (size_t i = 0; i < slots.size(); ++i) {
      std::copy_n(rows.begin() + i * row_bytes, row_bytes, expected.begin() + slots[i] * row_bytes);
    }
    kernels().scatter_rows({rows.data(), slots.data(), static_cast<uint32_t>(slots.size()), row_bytes, pool.data()});
    EXPECT_EQ(pool, expected);
  }
}

TEST_P(RowsTest, EmbedWidensRows) {
  std::mt19937 random(11);
  for (int hidden : {1, 15, 64, 100}) {
    const std::vector<float> values = RandomFloats(random, 7 * hidden);
    const std::vector<uint32_t> ids = {6, 0, 6, 3};
    for (Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
      const TypedArray table = Typed(values, dtype);
      std::vector<float> out(ids.size() * hidden, kPoison);
      kernels().embed({table.data(), dtype, hidden, ids.data(), static_cast<int>(ids.size()), 1, out.data()});
      for (size_t i = 0; i < ids.size(); ++i) {
        for (int d = 0; d < hidden; ++d) ASSERT_EQ(out[i * hidden + d], table.values[ids[i] * hidden + d]);
      }
    }
  }
}

// binary16: 1, -2, the largest, the smallest normal and subnormal, infinity.
TEST_P(RowsTest, EmbedAndPackReadF16) {
  const std::vector<uint16_t> table = {0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x8001, 0x7c00, 0x0000};
  const std::vector<float> expected = {1, -2, 65504, 0x1p-14f, 0x1p-24f, -0x1p-24f, kInfinity, 0};
  const uint32_t id = 0;
  std::vector<float> out(8, kPoison);
  kernels().embed({table.data(), Dtype::kF16, 8, &id, 1, 1, out.data()});
  EXPECT_EQ(out, expected);
  AlignedBytes packed(PackedBytes(1, 8, Dtype::kF32));
  kernels().pack({table.data(), Dtype::kF16, 1, 8, Dtype::kF32, packed.data()});
  for (int k = 0; k < 8; ++k) EXPECT_EQ(static_cast<float*>(packed.data())[k * kPanel], expected[k]);
}

TEST_P(RowsTest, PackLaysOutPanelsAndZeroesThePadding) {
  std::mt19937 random(12);
  for (Dtype from : {Dtype::kBf16, Dtype::kF32}) {
    for (Dtype to : {Dtype::kBf16, Dtype::kF32}) {
      for (auto [out_features, in_features] : {std::pair{70, 33}, {64, 32}, {1, 1}, {129, 100}}) {
        const TypedArray weight = Typed(RandomFloats(random, out_features * in_features), from);
        const int padded = PackedInFeatures(in_features);
        std::vector<uint8_t> packed(PackedBytes(out_features, in_features, to), 0xff);
        kernels().pack({weight.data(), from, out_features, in_features, to, packed.data()});
        const int panels = (out_features + 63) / 64;
        for (int n = 0; n < panels * 64; ++n) {
          for (int k = 0; k < padded; ++k) {
            float expected = n < out_features && k < in_features ? weight.values[n * in_features + k] : 0;
            float value = 0;
            if (to == Dtype::kF32) {
              std::memcpy(&value, &packed[4 * ((n / 64 * padded + k) * 64 + n % 64)], 4);
            } else {
              uint16_t narrow;
              std::memcpy(&narrow, &packed[2 * (((n / 64 * (padded / 2) + k / 2) * 64 + n % 64) * 2 + k % 2)], 2);
              value = WidenBf16(narrow);
              expected = Bf16Of(expected);
            }
            ASSERT_EQ(value, expected) << n << " " << k;
          }
        }
      }
    }
  }
}

TEST_P(RowsTest, MergeOfStatesIsAttentionOverTheUnion) {
  std::mt19937 random(13);
  constexpr int kRows = 6;
  for (int head_dim : {16, 64, 100}) {
    std::vector<std::vector<float>> o;
    std::vector<std::vector<float>> lse;
    for (int i = 0; i < 3; ++i) {
      o.push_back(RandomFloats(random, kRows * head_dim));
      lse.push_back(RandomFloats(random, kRows, 5));
    }
    // Empty states: one of row 1, two of row 2, all of row 3. What lies in their o does not matter.
    for (auto [state, row] : {std::pair{0, 1}, {1, 2}, {2, 2}, {0, 3}, {1, 3}, {2, 3}}) {
      lse[state][row] = -kInfinity;
      std::fill_n(o[state].begin() + row * head_dim, head_dim, kPoison);
    }
    const float* o_pointers[] = {o[0].data(), o[1].data(), o[2].data()};
    const float* lse_pointers[] = {lse[0].data(), lse[1].data(), lse[2].data()};
    std::vector<float> out(kRows * head_dim, kPoison);
    std::vector<float> out_lse(kRows, kPoison);
    kernels().merge_states({o_pointers, lse_pointers, 3, kRows, head_dim, out.data(), out_lse.data()});
    for (int row = 0; row < kRows; ++row) {
      double sum = 0;
      for (int i = 0; i < 3; ++i) sum += std::exp(static_cast<double>(lse[i][row]));
      for (int d = 0; d < head_dim; ++d) {
        double expected = 0;
        double magnitude = 0;
        for (int i = 0; i < 3; ++i) {
          if (lse[i][row] == -kInfinity) continue;
          const double term = std::exp(static_cast<double>(lse[i][row])) / sum * o[i][row * head_dim + d];
          expected += term;
          magnitude += std::fabs(term);
        }
        ASSERT_NEAR(out[row * head_dim + d], expected, 64 * kF32Epsilon * magnitude);
      }
      if (sum == 0) {
        EXPECT_EQ(out_lse[row], -kInfinity);
      } else {
        EXPECT_NEAR(out_lse[row], std::log(sum), 16 * kF32Epsilon * (1 + std::fabs(std::log(sum))));
      }
    }
    kernels().merge_states({o_pointers, lse_pointers, 0, 1, head_dim, out.data(), nullptr});
    EXPECT_EQ(out[0], 0);
  }
}

TEST_P(RowsTest, ParallelForReachesEveryIndex) {
  for (int threads : {1, 2, 3}) {
    EXPECT_EQ(kernels().num_workers(executor(threads)), threads);
    std::vector<int> calls(101);
    kernels().parallel_for(
        executor(threads), 101,
        [](void* context, int index, int) { ++(*static_cast<std::vector<int>*>(context))[index]; }, &calls);
    EXPECT_EQ(std::count(calls.begin(), calls.end(), 1), 101);
  }
}

TEST(CpuKernels, RefusesUnknownNames) {
  EXPECT_EQ(CpuKernels("sse9").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*CpuKernels("portable"))->name, "cpu-portable");
  EXPECT_TRUE(CpuKernels().ok());
}

}  // namespace
}  // namespace winnow
