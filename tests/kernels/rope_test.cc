#include <algorithm>

#include "tests/kernels/kernel_test.h"

namespace winnow {
namespace {

class RopeTest : public KernelTest {};
WINNOW_FOR_EACH_TABLE(RopeTest);

std::vector<double> Normed(const float* x, const float* weight, double epsilon, int head_dim) {
  std::vector<double> out(x, x + head_dim);
  if (weight == nullptr) return out;
  double squares = 0;
  for (double v : out) squares += v * v;
  for (int d = 0; d < head_dim; ++d) out[d] *= weight[d] / std::sqrt(squares / head_dim + epsilon);
  return out;
}

// Angles come from the f32 product, as in the reference implementation of the models.
std::vector<double> Rotated(const std::vector<double>& x, uint32_t position, const std::vector<float>& inv_freq,
                            double factor) {
  const size_t half = x.size() / 2;
  std::vector<double> out(x.size());
  for (size_t i = 0; i < half; ++i) {
    const double angle = static_cast<float>(position) * inv_freq[i];
    out[i] = factor * (x[i] * std::cos(angle) - x[i + half] * std::sin(angle));
    out[i + half] = factor * (x[i + half] * std::cos(angle) + x[i] * std::sin(angle));
  }
  return out;
}

std::vector<float> InvFreq(int head_dim) {
  std::vector<float> inv_freq;
  for (int i = 0; i < head_dim / 2; ++i) inv_freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / head_dim)));
  return inv_freq;
}

double Largest(const std::vector<double>& x) {
  double largest = 0;
  for (double v : x) largest = std::max(largest, std::fabs(v));
  return largest;
}

TEST_P(RopeTest, AppendMatchesDoubles) {
  std::mt19937 random(8);
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    for (int head_dim : {2, 6, 16, 64, 96, 128, 256}) {
      for (bool norms : {false, true}) {
        constexpr int kRows = 5;
        constexpr int kQueryHeads = 6;
        constexpr int kKvHeads = 2;
        const int64_t stride = (kQueryHeads + 2 * kKvHeads) * head_dim + 11;
        const std::vector<float> qkv = RandomFloats(random, kRows * stride);
        const std::vector<float> q_weight = RandomFloats(random, head_dim);
        const std::vector<float> k_weight = RandomFloats(random, head_dim);
        const std::vector<float> inv_freq = InvFreq(head_dim);
        const std::vector<uint32_t> positions = {0, 1, 77, 16383, 100000};
        std::vector<float> pre(kRows * kQueryHeads * head_dim, kPoison);
        std::vector<float> q(pre.size(), kPoison);
        std::vector<uint8_t> kv(kRows * kKvHeads * 2 * head_dim * DtypeBytes(dtype), 0xff);
        RopeAppendParams params;
        params.qkv = qkv.data();
        params.qkv_stride = stride;
        params.num_rows = kRows;
        params.num_query_heads = kQueryHeads;
        params.num_kv_heads = kKvHeads;
        params.head_dim = head_dim;
        params.q_norm_weight = norms ? q_weight.data() : nullptr;
        params.k_norm_weight = norms ? k_weight.data() : nullptr;
        params.norm_epsilon = 1e-6f;
        params.positions = positions.data();
        params.rope_inv_freq = inv_freq.data();
        params.rope_attention_factor = 1.25f;
        params.kv_dtype = dtype;
        params.q_pre_rope = pre.data();
        params.q = q.data();
        params.kv_rows = kv.data();
        kernels().rope_append(executor(2), params);

        const double kv_epsilon = dtype == Dtype::kBf16 ? kBf16Epsilon : 0;
        const double epsilon = (head_dim + 16) * kF32Epsilon;
        const auto stored = [&](size_t i) {
          if (dtype == Dtype::kF32) {
            float f;
            std::memcpy(&f, &kv[4 * i], 4);
            return f;
          }
          uint16_t narrow;
          std::memcpy(&narrow, &kv[2 * i], 2);
          return WidenBf16(narrow);
        };
        for (int row = 0; row < kRows; ++row) {
          const float* in = &qkv[row * stride];
          for (int h = 0; h < kQueryHeads; ++h) {
            const auto normed = Normed(in + h * head_dim, params.q_norm_weight, 1e-6, head_dim);
            const auto rotated = Rotated(normed, positions[row], inv_freq, 1.25);
            const size_t offset = (static_cast<size_t>(row) * kQueryHeads + h) * head_dim;
            for (int d = 0; d < head_dim; ++d) {
              ASSERT_NEAR(pre[offset + d], normed[d], epsilon * std::fabs(normed[d]) + 1e-30);
              ASSERT_NEAR(q[offset + d], rotated[d], 4 * epsilon * Largest(normed));
            }
          }
          for (int h = 0; h < kKvHeads; ++h) {
            const auto normed = Normed(in + (kQueryHeads + h) * head_dim, params.k_norm_weight, 1e-6, head_dim);
            const auto rotated = Rotated(normed, positions[row], inv_freq, 1.25);
            const float* v = in + (kQueryHeads + kKvHeads + h) * head_dim;
            const size_t offset = (static_cast<size_t>(row) * kKvHeads + h) * 2 * head_dim;
            for (int d = 0; d < head_dim; ++d) {
              ASSERT_NEAR(stored(offset + d), rotated[d],
                          4 * epsilon * Largest(normed) + 2 * kv_epsilon * std::fabs(rotated[d]));
              ASSERT_EQ(stored(offset + head_dim + d), dtype == Dtype::kF32 ? v[d] : Bf16Of(v[d]));
            }
          }
        }

        // The pieces a predictor uses give the same bits: rotate() of the unrotated queries, query_norm() of the
        // projection.
        std::vector<float> again(q.size(), kPoison);
        kernels().rotate(
            {pre.data(), kRows, kQueryHeads, head_dim, positions.data(), inv_freq.data(), 1.25f, again.data()});
        EXPECT_TRUE(SameBits(again, q));
        std::vector<float> projected;
        for (int row = 0; row < kRows; ++row) {
          projected.insert(projected.end(), &qkv[row * stride], &qkv[row * stride] + kQueryHeads * head_dim);
        }
        kernels().query_norm({projected.data(), kRows, kQueryHeads, head_dim, params.q_norm_weight, 1e-6f});
        EXPECT_TRUE(SameBits(projected, pre));

        // One row alone, and without the optional output.
        std::vector<float> alone(kQueryHeads * head_dim, kPoison);
        std::vector<uint8_t> kv_alone(kv.size() / kRows, 0xff);
        params.qkv += 3 * stride;
        params.num_rows = 1;
        params.positions += 3;
        params.q_pre_rope = nullptr;
        params.q = alone.data();
        params.kv_rows = kv_alone.data();
        kernels().rope_append(executor(1), params);
        EXPECT_EQ(std::memcmp(alone.data(), &q[3 * kQueryHeads * head_dim], alone.size() * 4), 0);
        EXPECT_EQ(std::memcmp(kv_alone.data(), &kv[3 * kv_alone.size()], kv_alone.size()), 0);
      }
    }
  }
}

// Heads of which a part turns: the attention factor belongs to that part.
TEST_P(RopeTest, APairOfFrequencyZeroStaysAsItIs) {
  std::mt19937 random(12);
  constexpr int kHeadDim = 8;
  const std::vector<float> x = RandomFloats(random, kHeadDim), inv_freq = {1, 0.1f, 0, 0};
  const uint32_t position = 1234;
  std::vector<float> q(kHeadDim, kPoison);
  kernels().rotate({x.data(), 1, 1, kHeadDim, &position, inv_freq.data(), 1.25f, q.data()});
  const auto turned = Rotated({x.begin(), x.end()}, position, inv_freq, 1.25);
  for (const int pair : {0, 1, 2, 3}) {
    for (const int at : {pair, pair + kHeadDim / 2}) {
      if (pair < 2) {
        EXPECT_NEAR(q[at], turned[at], 1e-4) << at;
      } else {
        EXPECT_EQ(q[at], x[at]) << at;
      }
    }
  }
}

}  // namespace
}  // namespace winnow
