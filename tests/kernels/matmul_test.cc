#include <algorithm>
#include <bit>

#include "tests/kernels/kernel_test.h"

namespace winnow {
namespace {

class MatmulTest : public KernelTest {};
WINNOW_FOR_EACH_TABLE(MatmulTest);

struct Case {
  int rows = 1;
  int in = 64;
  int out = 64;
  Dtype dtype = Dtype::kBf16;
  InputTransform transform = InputTransform::kNone;
  bool bias = false;
  bool accumulate = false;
};

// One problem: inputs, and what the kernel makes of any run of its rows.
struct Problem {
  Problem(const KernelTable& table, const Case& c)
      : kernels(table), shape(c), packed(PackedBytes(c.out, c.in, c.dtype)) {
    std::mt19937 random(c.rows * 7919 + c.in * 31 + c.out);
    x_stride = (c.transform == InputTransform::kSiluMul ? 2 * c.in : c.in) + 3;
    y_stride = c.out + 5;
    x = RandomFloats(random, c.rows * x_stride);
    weight = Typed(RandomFloats(random, static_cast<size_t>(c.out) * c.in), c.dtype);
    norm = RandomFloats(random, c.in);
    bias = RandomFloats(random, c.out);
    old_y = c.accumulate ? RandomFloats(random, c.rows * y_stride) : std::vector<float>(c.rows * y_stride, kPoison);
    kernels.pack({.weight = weight.data(),
                  .dtype = c.dtype,
                  .out_features = c.out,
                  .in_features = c.in,
                  .packed_dtype = c.dtype,
                  .packed = packed.data()});
  }

  // Rows [begin, end) computed as a batch of their own; the rest of y stays as it was.
  void Run(void (*matmul)(Executor&, const MatmulParams&), Executor& executor, int begin, int end,
           std::vector<float>& y) {
    MatmulParams params;
    params.x = x.data() + begin * x_stride;
    params.x_stride = x_stride;
    params.num_rows = end - begin;
    params.transform = shape.transform;
    params.norm_weight = norm.data();
    params.norm_epsilon = 1e-6f;
    params.weight = {packed.data(), shape.out, shape.in, shape.dtype};
    params.bias = shape.bias ? bias.data() : nullptr;
    params.accumulate = shape.accumulate;
    params.y = y.data() + begin * y_stride;
    params.y_stride = y_stride;
    matmul(executor, params);
  }

  // `may_round`: the input may have been rounded to bf16 where the weights are bf16.
  void CheckAgainstDoubles(const std::vector<float>& y, bool may_round) const {
    const double input_epsilon = may_round && shape.dtype == Dtype::kBf16 ? kBf16Epsilon : 0;
    for (int r = 0; r < shape.rows; ++r) {
      const std::vector<double> in = Transformed(r);
      for (int n = 0; n < shape.out; ++n) {
        double sum = 0;
        double magnitude = 0;
        for (int k = 0; k < shape.in; ++k) {
          const double product = in[k] * weight.values[static_cast<size_t>(n) * shape.in + k];
          sum += product;
          magnitude += std::fabs(product);
        }
        if (shape.bias) sum += bias[n];
        if (shape.accumulate) sum += old_y[r * y_stride + n];
        // in + 2 additions, the transform's few roundings, and the rounding of the input to bf16.
        const double tolerance =
            magnitude * (input_epsilon + (shape.in + 16) * kF32Epsilon) + 4 * kF32Epsilon * std::fabs(sum) + 1e-6;
        ASSERT_NEAR(y[r * y_stride + n], sum, tolerance) << "row " << r << " output " << n;
      }
      for (int n = shape.out; n < y_stride; ++n) {
        ASSERT_EQ(std::bit_cast<uint32_t>(y[r * y_stride + n]), std::bit_cast<uint32_t>(old_y[r * y_stride + n]))
            << "wrote past the row";
      }
    }
  }

  std::vector<double> Transformed(int r) const {
    const float* row = x.data() + r * x_stride;
    std::vector<double> in(row, row + shape.in);
    if (shape.transform == InputTransform::kRmsNorm) {
      double squares = 0;
      for (double v : in) squares += v * v;
      for (int k = 0; k < shape.in; ++k) in[k] *= norm[k] / std::sqrt(squares / shape.in + 1e-6);
    } else if (shape.transform == InputTransform::kSiluMul) {
      for (int k = 0; k < shape.in; ++k) in[k] *= row[shape.in + k] / (1 + std::exp(-in[k]));
    }
    return in;
  }

  const KernelTable& kernels;
  Case shape;
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  std::vector<float> x;
  TypedArray weight;
  std::vector<float> norm;
  std::vector<float> bias;
  std::vector<float> old_y;
  AlignedBytes packed;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    for (int rows : {1, 2, 3, 5, 6, 7, 8, 13, 64}) cases.push_back({rows, 64, 128, dtype});
    for (int in : {2, 31, 32, 33, 100, 160, 257}) cases.push_back({3, in, 100, dtype});
    for (int out : {1, 63, 64, 65, 160}) cases.push_back({4, 96, out, dtype});
    for (InputTransform transform : {InputTransform::kNone, InputTransform::kRmsNorm, InputTransform::kSiluMul}) {
      for (bool bias : {false, true}) {
        for (bool accumulate : {false, true}) {
          cases.push_back({2, 160, 200, dtype, transform, bias, accumulate});
          cases.push_back({9, 100, 64, dtype, transform, bias, accumulate});
        }
      }
    }
    cases.push_back({14, 4500, 70, dtype, InputTransform::kRmsNorm, true, true});  // several slices of k
    cases.push_back({400, 64, 192, dtype, InputTransform::kSiluMul, true, true});  // several blocks of rows
  }
  return cases;
}

TEST_P(MatmulTest, MatchesDoubles) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(testing::Message() << c.rows << "x" << c.in << "x" << c.out << " " << DtypeName(c.dtype)
                                    << " transform " << static_cast<int>(c.transform) << " bias " << c.bias
                                    << " accumulate " << c.accumulate);
    Problem problem(kernels(), c);
    for (int threads : {1, 2}) {
      std::vector<float> y = problem.old_y;
      problem.Run(kernels().prefill_matmul, executor(threads), 0, c.rows, y);
      problem.CheckAgainstDoubles(y, /*may_round=*/true);
      if (HasFatalFailure()) return;
      if (c.rows > 64) continue;
      y = problem.old_y;
      problem.Run(kernels().decode_matmul, executor(threads), 0, c.rows, y);
      problem.CheckAgainstDoubles(y, /*may_round=*/false);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(MatmulTest, RowsDoNotDependOnBatchThreadsOrChunks) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    for (InputTransform transform : {InputTransform::kNone, InputTransform::kRmsNorm, InputTransform::kSiluMul}) {
      const Case c{
          .rows = 64, .in = 2500, .out = 100, .dtype = dtype, .transform = transform, .bias = true, .accumulate = true};
      Problem problem(kernels(), c);
      std::vector<float> alone = problem.old_y;
      for (int r = 0; r < c.rows; ++r) problem.Run(kernels().decode_matmul, executor(1), r, r + 1, alone);
      for (int threads : {1, 2, 3}) {
        for (int batch : {2, 5, 6, 7, 12, 13, 33, 64}) {
          std::vector<float> y = problem.old_y;
          for (int begin = 0; begin < c.rows; begin += batch) {
            problem.Run(kernels().decode_matmul, executor(threads), begin, std::min(begin + batch, c.rows), y);
          }
          ASSERT_TRUE(SameBits(y, alone)) << "batch " << batch << " threads " << threads;
        }
      }
    }
  }
}

TEST_P(MatmulTest, PrefillRowsDoNotDependOnChunks) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    const Case c{
        .rows = 900, .in = 96, .out = 160, .dtype = dtype, .transform = InputTransform::kRmsNorm, .accumulate = true};
    Problem problem(kernels(), c);
    std::vector<float> whole = problem.old_y;
    problem.Run(kernels().prefill_matmul, executor(1), 0, c.rows, whole);
    for (int threads : {1, 2, 3}) {
      for (int chunk : {1, 37, 128, 385, 899}) {
        std::vector<float> y = problem.old_y;
        for (int begin = 0; begin < c.rows; begin += chunk) {
          problem.Run(kernels().prefill_matmul, executor(threads), begin, std::min(begin + chunk, c.rows), y);
        }
        ASSERT_TRUE(SameBits(y, whole)) << "chunk " << chunk << " threads " << threads;
      }
    }
  }
}

TEST_P(MatmulTest, NoRows) {
  Problem problem(kernels(), {.rows = 1});
  std::vector<float> y = problem.old_y;
  problem.Run(kernels().decode_matmul, executor(2), 0, 0, y);
  problem.Run(kernels().prefill_matmul, executor(2), 0, 0, y);
  EXPECT_EQ(std::memcmp(y.data(), problem.old_y.data(), y.size() * 4), 0);
}

// Large gates must not overflow inside silu: silu(-200) = -0, silu(200) = 200.
TEST_P(MatmulTest, SiluOfLargeGates) {
  const Case c{.rows = 1, .in = 32, .out = 64, .dtype = Dtype::kF32, .transform = InputTransform::kSiluMul};
  Problem problem(kernels(), c);
  for (int k = 0; k < c.in; ++k) problem.x[k] = k % 2 == 0 ? 200.0f : -200.0f;
  std::vector<float> y = problem.old_y;
  problem.Run(kernels().decode_matmul, executor(1), 0, 1, y);
  problem.CheckAgainstDoubles(y, /*may_round=*/false);
}

}  // namespace
}  // namespace winnow
