#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"

namespace winnow {

// Runs a test once for each table that this machine can run.
class KernelTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    absl::StatusOr<const KernelTable*> table = CpuKernels(GetParam());
    if (!table.ok()) GTEST_SKIP() << table.status().message();
    kernels_ = *table;
    for (int threads = 1; threads <= 3; ++threads) executors_.push_back(kernels_->new_executor(threads));
  }

  const KernelTable& kernels() const { return *kernels_; }
  // 1, 2 or 3 threads.
  Executor& executor(int threads) { return *executors_[threads - 1]; }

 private:
  const KernelTable* kernels_ = nullptr;
  std::vector<std::unique_ptr<Executor>> executors_;
};

#define WINNOW_FOR_EACH_TABLE(suite)                                                                   \
  INSTANTIATE_TEST_SUITE_P(Tables, suite, testing::Values("portable", "avx2", "avx512", "avx512bf16"), \
                           [](const auto& info) { return std::string(info.param); })

inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
inline constexpr double kF32Epsilon = 0x1p-24;  // rounding to nearest, relative
inline constexpr double kBf16Epsilon = 0x1p-8;

inline std::vector<float> RandomFloats(std::mt19937& random, size_t n, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

// Test-side conversions, written apart from the kernels'.
inline float WidenBf16(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline uint16_t NarrowToBf16(float x) {  // nearest, ties to even, by trying both neighbours
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint16_t down = static_cast<uint16_t>(bits >> 16);
  const uint16_t up = static_cast<uint16_t>(down + 1);
  const double below = std::fabs(static_cast<double>(x) - WidenBf16(down));
  const double above = std::fabs(static_cast<double>(WidenBf16(up)) - x);
  if (below != above) return below < above ? down : up;
  return down % 2 == 0 ? down : up;
}
inline float Bf16Of(float x) {
  return WidenBf16(NarrowToBf16(x));
}

// Numbers as a kernel stores them.
struct TypedArray {
  Dtype dtype = Dtype::kF32;
  std::vector<float> values;  // exactly what `bytes` means
  std::vector<uint8_t> bytes;

  const void* data() const { return bytes.data(); }
};

inline TypedArray Typed(const std::vector<float>& values, Dtype dtype) {
  TypedArray out{dtype, values, std::vector<uint8_t>(values.size() * DtypeBytes(dtype))};
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == Dtype::kF32) {
      std::memcpy(&out.bytes[4 * i], &values[i], 4);
    } else {
      const uint16_t narrow = NarrowToBf16(values[i]);
      out.values[i] = WidenBf16(narrow);
      std::memcpy(&out.bytes[2 * i], &narrow, 2);
    }
  }
  return out;
}

// Rows [n][2 * head_dim] as kernels store them: RowLayout.
inline size_t RowBytes(int head_dim, Dtype dtype) {
  return 2 * head_dim * DtypeBytes(dtype) + (dtype == Dtype::kI8 ? 8 : 0);
}
inline constexpr Dtype kRowDtypes[] = {Dtype::kBf16, Dtype::kF32, Dtype::kI8};
inline TypedArray TypedRows(const std::vector<float>& values, int head_dim, Dtype dtype) {
  if (dtype != Dtype::kI8) return Typed(values, dtype);
  const size_t num_rows = values.size() / (2 * head_dim);
  TypedArray out{dtype, values, std::vector<uint8_t>(num_rows * RowBytes(head_dim, dtype))};
  for (size_t half = 0; half < 2 * num_rows; ++half) {  // a key, then its value
    uint8_t* const row = &out.bytes[half / 2 * RowBytes(head_dim, dtype)];
    const float* const from = &values[half * head_dim];
    double max = 0;
    for (int d = 0; d < head_dim; ++d) max = std::max(max, std::fabs(double{from[d]}));
    const float scale = static_cast<float>(max / 127);
    for (int d = 0; d < head_dim; ++d) {
      const auto code = static_cast<int8_t>(std::lround(from[d] / scale));
      std::memcpy(row + half % 2 * head_dim + d, &code, 1);
      out.values[half * head_dim + d] = static_cast<float>(code) * scale;
    }
    std::memcpy(row + 2 * head_dim + half % 2 * 4, &scale, 4);
  }
  return out;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// 64-byte aligned bytes, zeroed.
struct AlignedBytes {
  explicit AlignedBytes(size_t n) : storage(n + 64) {}
  void* data() { return storage.data() + (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64) % 64; }
  std::vector<uint8_t> storage;
};

}  // namespace winnow
