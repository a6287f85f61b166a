// A quantised matrix gives the bits of the f32 matrix that it stands for.
#include <algorithm>
#include <numeric>

#include "common/base/fp8.h"
#include "kernels/quantized_pack.h"
#include "tests/kernels/kernel_test.h"

namespace winnow {
namespace {

class QuantizedMatmulTest : public KernelTest {};
WINNOW_FOR_EACH_TABLE(QuantizedMatmulTest);

// By the format's definition: sign, 4 bits of exponent with bias 7, 3 of mantissa.
double E4m3(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// By the format's definition: sign, 2 bits of exponent with bias 1, 1 of mantissa.
double E2m1(uint8_t code) {
  const int exponent = code >> 1 & 3;
  const int mantissa = code & 1;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -1) : std::ldexp(2 + mantissa, exponent - 2);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

struct Shape {
  Dtype dtype = Dtype::kI4;
  int group_size = 32;
  int in = 64;
  int out = 64;
  bool has_order = false;
  bool mxfp4 = false;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << (shape.mxfp4 ? "mxfp4" : DtypeName(shape.dtype)) << " groups of " << shape.group_size << ", " << shape.in
       << " to " << shape.out << (shape.has_order ? ", with an order" : "");
}

// Random codes, with scales of 11 significant bits as checkpoints have them, packed as they are and as f32.
struct Weights {
  Weights(const KernelTable& kernels, const Shape& shape)
      : order(static_cast<size_t>(shape.in)), values(static_cast<size_t>(shape.out) * shape.in) {
    std::mt19937 random(static_cast<uint32_t>(shape.in * 31 + shape.out + shape.group_size));
    const int groups = (shape.in + shape.group_size - 1) / shape.group_size;
    const int num_codes = shape.dtype == Dtype::kI4 ? 16 : 256;
    std::vector<uint8_t> codes(values.size());
    std::vector<float> scales(static_cast<size_t>(shape.out) * groups);
    std::vector<int16_t> zeros(scales.size());
    std::vector<uint8_t> exponents(scales.size());
    for (float& scale : scales) scale = std::ldexp(static_cast<float>(1024 + random() % 1024), -14);
    for (int16_t& zero : zeros) zero = static_cast<int16_t>(random() % (num_codes + 1));
    for (uint8_t& exponent : exponents) exponent = static_cast<uint8_t>(random() % 20 == 0 ? 0 : 120 + random() % 10);
    for (int n = 0; n < shape.out; ++n) {
      for (int k = 0; k < shape.in; ++k) {
        const size_t at = static_cast<size_t>(n) * shape.in + k;
        const size_t group = static_cast<size_t>(n) * groups + k / shape.group_size;
        uint8_t code = static_cast<uint8_t>(random() % num_codes);
        if (shape.dtype == Dtype::kF8 && (code & 0x7f) == 0x7f) code = 0;
        codes[at] = code;
        if (shape.mxfp4) {
          values[at] = static_cast<float>(std::ldexp(E2m1(code), exponents[group] - 127));
          continue;
        }
        const double value = shape.dtype == Dtype::kF8 ? E4m3(code) : code - zeros[group];
        values[at] = static_cast<float>(value * scales[group]);
      }
    }
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random);

    quantized = {.out_features = shape.out,
                 .in_features = shape.in,
                 .dtype = shape.dtype,
                 .group_size = shape.group_size,
                 .input_order = shape.has_order ? order.data() : nullptr,
                 .mxfp4 = shape.mxfp4};
    quantized_bytes = std::make_unique<AlignedBytes>(PackedBytes(quantized));
    quantized.data = quantized_bytes->data();
    for (int first = 0; first < shape.out; first += kPanel) {
      PackQuantizedPanel(
          {.codes = codes.data() + static_cast<size_t>(first) * shape.in,
           .scales = scales.data() + static_cast<size_t>(first) * groups,
           .zeros = zeros.data() + static_cast<size_t>(first) * groups,
           .exponents = exponents.data() + static_cast<size_t>(first) * groups,
           .num_outputs = std::min(kPanel, shape.out - first),
           .matrix = quantized,
           .packed = static_cast<uint8_t*>(quantized_bytes->data()) + first / kPanel * PanelBytes(quantized)});
    }
    f32_bytes = std::make_unique<AlignedBytes>(PackedBytes(shape.out, shape.in, Dtype::kF32));
    f32 = {f32_bytes->data(), shape.out, shape.in, Dtype::kF32};
    kernels.pack({.weight = values.data(),
                  .dtype = Dtype::kF32,
                  .out_features = shape.out,
                  .in_features = shape.in,
                  .packed_dtype = Dtype::kF32,
                  .packed = f32_bytes->data()});
  }

  std::vector<uint32_t> order;
  std::vector<float> values;  // [out, in]
  std::unique_ptr<AlignedBytes> quantized_bytes, f32_bytes;
  PackedMatrix quantized, f32;
};

std::vector<float> Multiply(void (*matmul)(Executor&, const MatmulParams&), Executor& executor,
                            const PackedMatrix& weight, const std::vector<float>& x, int num_rows,
                            InputTransform transform = InputTransform::kNone) {
  const std::vector<float> norm(static_cast<size_t>(weight.in_features), 0.5f);
  std::vector<float> bias(static_cast<size_t>(weight.out_features));
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i % 7) - 3;
  std::vector<float> y(static_cast<size_t>(num_rows) * weight.out_features, 0.25f);
  matmul(executor, {.x = x.data(),
                    .x_stride = static_cast<int64_t>(x.size()) / num_rows,
                    .num_rows = num_rows,
                    .transform = transform,
                    .norm_weight = norm.data(),
                    .norm_epsilon = 1e-6f,
                    .weight = weight,
                    .bias = bias.data(),
                    .accumulate = true,
                    .y = y.data(),
                    .y_stride = weight.out_features});
  return y;
}

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (const Dtype dtype : {Dtype::kF8, Dtype::kI8, Dtype::kI4}) {
    for (const bool has_order : {false, true}) {
      shapes.push_back({dtype, 32, 32, 64, has_order});
      shapes.push_back({dtype, 32, 100, 70, has_order});
      shapes.push_back({dtype, 128, 256, 128, has_order});
      shapes.push_back({dtype, 128, 320, 100, has_order});  // the last group is half a group
      shapes.push_back({dtype, 352, 333, 64, has_order});   // one group
      shapes.push_back({dtype, 64, 4544, 65, has_order});
    }
  }
  for (const auto& [in, out] : {std::pair(32, 64), std::pair(96, 70), std::pair(2880, 128)}) {
    shapes.push_back({Dtype::kI4, 32, in, out, false, /*mxfp4=*/true});
  }
  return shapes;
}

TEST_P(QuantizedMatmulTest, GivesTheBitsOfTheF32Matrix) {
  for (const Shape& shape : Shapes()) {
    SCOPED_TRACE(testing::PrintToString(shape));
    const Weights weights(kernels(), shape);
    for (const int rows : {1, 2, 3, 4, 5, 6, 7, 13, 64, 101}) {
      std::mt19937 random(static_cast<uint32_t>(rows));
      const std::vector<float> x = RandomFloats(random, static_cast<size_t>(rows) * shape.in);
      std::vector<float> ordered = x;
      for (int r = 0; r < rows && shape.has_order; ++r) {
        const size_t row = static_cast<size_t>(r) * shape.in;
        for (size_t k = 0; k < weights.order.size(); ++k) ordered[row + k] = x[row + weights.order[k]];
      }
      for (const int threads : {1, 2}) {
        for (const auto matmul : {kernels().decode_matmul, kernels().prefill_matmul}) {
          if (rows > 64 && matmul == kernels().decode_matmul) continue;
          ASSERT_TRUE(SameBits(Multiply(matmul, executor(threads), weights.quantized, x, rows),
                               Multiply(matmul, executor(threads), weights.f32, ordered, rows)))
              << rows << " rows, " << threads << " threads";
        }
      }
    }
  }
}

TEST_P(QuantizedMatmulTest, TransformsItsInputBeforeTheOrder) {
  for (const InputTransform transform : {InputTransform::kRmsNorm, InputTransform::kSiluMul}) {
    const Shape shape{Dtype::kI4, 32, 160, 64, true};
    const Weights weights(kernels(), shape);
    std::mt19937 random(5);
    const std::vector<float> x = RandomFloats(random, 2 * 160);
    const std::vector<float> y = Multiply(kernels().decode_matmul, executor(1), weights.quantized, x, 1, transform);
    for (int n = 0; n < shape.out; ++n) {
      double sum = n % 7 - 3 + 0.25;
      for (int k = 0; k < shape.in; ++k) {
        const size_t at = weights.order[static_cast<size_t>(k)];
        double in = x[at];
        if (transform == InputTransform::kSiluMul) {
          in = x[at] / (1 + std::exp(-static_cast<double>(x[at]))) * x[at + 160];
        } else {
          double row_squares = 0;
          for (int i = 0; i < shape.in; ++i) row_squares += static_cast<double>(x[i]) * x[i];
          in = x[at] * 0.5 / std::sqrt(row_squares / shape.in + 1e-6);
        }
        sum += in * weights.values[static_cast<size_t>(n) * shape.in + k];
      }
      ASSERT_NEAR(y[n], sum, 1e-3) << n;
    }
  }
}

TEST(Fp8Test, EveryCodeHasItsValue) {
  for (int code = 0; code < 256; ++code) {
    const float value = Fp8ToF32(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, E4m3(static_cast<uint8_t>(code))) << code;
      EXPECT_EQ(std::signbit(value), (code & 0x80) != 0) << code;
    }
  }
}

}  // namespace
}  // namespace winnow
