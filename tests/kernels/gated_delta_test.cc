// Linear attention with the gated delta rule against the rule itself in f64, and that no bit of a row depends on where
// pieces are cut or on who else is there.
#include "kernels/params/delta.h"
#include "tests/kernels/kernel_test.h"

namespace winnow {
namespace {

struct DeltaShape {
  int key_heads, value_heads, key_dim, value_dim, conv_width;

  int key_features() const { return key_heads * key_dim; }
  int value_features() const { return value_heads * value_dim; }
  int conv_features() const { return 2 * key_features() + value_features(); }
  int row_floats() const { return conv_features() + value_features(); }
  int shared() const { return value_heads / key_heads; }
  size_t tail_floats() const { return static_cast<size_t>(conv_width - 1) * conv_features(); }
  size_t state_floats() const { return static_cast<size_t>(value_heads) * key_dim * value_dim; }
};

// Widths of whole vectors, of parts of one, and of more columns than a block has.
constexpr DeltaShape kDeltaShapes[] = {{2, 4, 32, 64, 4}, {1, 1, 12, 5, 2}, {3, 3, 20, 80, 4}, {2, 6, 7, 23, 3}};

struct DeltaState {
  explicit DeltaState(const DeltaShape& shape) : tail(shape.tail_floats()), state(shape.state_floats()) {}
  std::vector<float> tail, state;
};

// A layer of one shape, and the rows of one sequence.
struct DeltaLayer {
  DeltaLayer(const DeltaShape& of, int rows, std::mt19937& random) : shape(of), num_rows(rows) {
    projected = RandomFloats(random, static_cast<size_t>(rows) * of.row_floats());
    rates = RandomFloats(random, static_cast<size_t>(rows) * 2 * of.value_heads, 2);
    conv = RandomFloats(random, static_cast<size_t>(of.conv_width) * of.conv_features(), 0.5f);
    log_forgetting = RandomFloats(random, of.value_heads);
    rate_bias = RandomFloats(random, of.value_heads);
    norm = RandomFloats(random, of.value_dim);
  }

  // Pieces of so many rows each, one call after the other: what comes out, then tail and state.
  std::vector<float> Run(const KernelTable& kernels, Executor& executor, const std::vector<int>& pieces) const {
    DeltaState state(shape);
    std::vector<float> out(static_cast<size_t>(num_rows) * shape.value_features(), kPoison);
    int first = 0;
    for (const int rows : pieces) {
      const DeltaPiece piece{0, rows, state.tail.data(), state.state.data()};
      RunPieces(kernels, executor, projected.data() + static_cast<size_t>(first) * shape.row_floats(),
                rates.data() + static_cast<size_t>(first) * 2 * shape.value_heads, {piece},
                out.data() + static_cast<size_t>(first) * shape.value_features());
      first += rows;
    }
    out.insert(out.end(), state.tail.begin(), state.tail.end());
    out.insert(out.end(), state.state.begin(), state.state.end());
    return out;
  }

  void RunPieces(const KernelTable& kernels, Executor& executor, const float* rows, const float* row_rates,
                 const std::vector<DeltaPiece>& pieces, float* out) const {
    const int group = 2 * shape.key_dim + 2 * shape.shared() * shape.value_dim;
    int count = 0;
    for (const DeltaPiece& piece : pieces) count = std::max(count, piece.first_row + piece.num_rows);
    std::vector<float> scratch(
        count * GatedDeltaScratchFloats(shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim), kPoison);
    kernels.gated_delta(executor, {.projected = rows,
                                   .projected_stride = shape.row_floats(),
                                   .query = {0, group},
                                   .key = {shape.key_dim, group},
                                   .value = {2 * shape.key_dim, group},
                                   .gate = {2 * shape.key_dim + shape.shared() * shape.value_dim, group},
                                   .rates = row_rates,
                                   .rates_stride = 2 * shape.value_heads,
                                   .learning = {0, 2 * shape.shared()},
                                   .forgetting = {shape.shared(), 2 * shape.shared()},
                                   .num_key_heads = shape.key_heads,
                                   .num_value_heads = shape.value_heads,
                                   .key_dim = shape.key_dim,
                                   .value_dim = shape.value_dim,
                                   .conv_width = shape.conv_width,
                                   .conv = conv.data(),
                                   .log_forgetting = log_forgetting.data(),
                                   .rate_bias = rate_bias.data(),
                                   .norm_weight = norm.data(),
                                   .norm_epsilon = 1e-6f,
                                   .pieces = pieces.data(),
                                   .num_pieces = static_cast<int>(pieces.size()),
                                   .scratch = scratch.data(),
                                   .out = out});
  }

  const DeltaShape shape;
  const int num_rows;
  std::vector<float> projected, rates, conv, log_forgetting, rate_bias, norm;
};

double SiluOf(double x) {
  return x / (1 + std::exp(-x));
}

// The rule, head by head.
std::vector<double> DeltaReference(const DeltaLayer& layer) {
  const DeltaShape& s = layer.shape;
  const int group_floats = 2 * s.key_dim + 2 * s.shared() * s.value_dim;
  std::vector<double> out(static_cast<size_t>(layer.num_rows) * s.value_features());
  // Channel `c` of the convolution, whose input is element `in_row` of a row.
  const auto convolved = [&](int row, int in_row, int c) {
    double sum = 0;
    for (int tap = 0; tap < s.conv_width; ++tap) {
      const int from = row - s.conv_width + 1 + tap;
      if (from < 0) continue;
      sum += double{layer.conv[static_cast<size_t>(tap) * s.conv_features() + c]} *
             layer.projected[static_cast<size_t>(from) * s.row_floats() + in_row];
    }
    return SiluOf(sum);
  };
  for (int head = 0; head < s.value_heads; ++head) {
    const int group = head / s.shared(), in_group = head % s.shared(), first = group * group_floats;
    std::vector<double> state(static_cast<size_t>(s.key_dim) * s.value_dim);
    for (int row = 0; row < layer.num_rows; ++row) {
      std::vector<double> query(s.key_dim), key(s.key_dim), answer(s.value_dim);
      double qq = 1e-6, kk = 1e-6, square = 0;
      for (int i = 0; i < s.key_dim; ++i) {
        query[i] = convolved(row, first + i, group * s.key_dim + i);
        key[i] = convolved(row, first + s.key_dim + i, s.key_features() + group * s.key_dim + i);
        qq += query[i] * query[i];
        kk += key[i] * key[i];
      }
      const float* const rates = &layer.rates[static_cast<size_t>(row) * 2 * s.value_heads + group * 2 * s.shared()];
      const double beta = 1 / (1 + std::exp(-double{rates[in_group]}));
      const double decay = std::exp(-std::exp(double{layer.log_forgetting[head]}) *
                                    std::log1p(std::exp(double{rates[s.shared() + in_group]} + layer.rate_bias[head])));
      for (int j = 0; j < s.value_dim; ++j) {
        const int in_values = in_group * s.value_dim + j;
        const double value = convolved(row, first + 2 * s.key_dim + in_values,
                                       2 * s.key_features() + group * s.shared() * s.value_dim + in_values);
        double recalled = 0;
        for (int i = 0; i < s.key_dim; ++i) {
          recalled += key[i] / std::sqrt(kk) * (state[static_cast<size_t>(i) * s.value_dim + j] *= decay);
        }
        for (int i = 0; i < s.key_dim; ++i) {
          double& at = state[static_cast<size_t>(i) * s.value_dim + j];
          at += key[i] / std::sqrt(kk) * beta * (value - recalled);
          answer[j] += query[i] / std::sqrt(qq * s.key_dim) * at;
        }
        square += answer[j] * answer[j];
      }
      for (int j = 0; j < s.value_dim; ++j) {
        const double gate = layer.projected[static_cast<size_t>(row) * s.row_floats() + first + 2 * s.key_dim +
                                            (s.shared() + in_group) * s.value_dim + j];
        out[static_cast<size_t>(row) * s.value_features() + head * s.value_dim + j] =
            answer[j] / std::sqrt(square / s.value_dim + 1e-6) * layer.norm[j] * SiluOf(gate);
      }
    }
  }
  return out;
}

class GatedDeltaTest : public KernelTest {};

TEST_P(GatedDeltaTest, FollowsTheRule) {
  std::mt19937 random(3);
  for (const DeltaShape& shape : kDeltaShapes) {
    SCOPED_TRACE(testing::Message() << shape.key_dim << " x " << shape.value_dim);
    const DeltaLayer layer(shape, 90, random);
    const std::vector<float> out = layer.Run(kernels(), executor(2), {90});
    const std::vector<double> expected = DeltaReference(layer);
    // The norm makes answers of any length one of some sqrt(value_dim): what rounds is relative to that.
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(out[i], expected[i], 2e-4 * (1 + std::fabs(expected[i]))) << "element " << i;
    }
  }
}

TEST_P(GatedDeltaTest, WherePiecesAreCutChangesNoBit) {
  std::mt19937 random(5);
  for (const DeltaShape& shape : kDeltaShapes) {
    const DeltaLayer layer(shape, 70, random);
    const std::vector<float> whole = layer.Run(kernels(), executor(1), {70});
    EXPECT_EQ(layer.Run(kernels(), executor(3), {1, 2, 30, 1, 36}), whole);
    EXPECT_EQ(layer.Run(kernels(), executor(2), std::vector<int>(70, 1)), whole);
  }
}

TEST_P(GatedDeltaTest, SequencesOfABatchDoNotMeet) {
  std::mt19937 random(7);
  const DeltaShape shape = kDeltaShapes[0];
  const DeltaLayer layer(shape, 12, random);
  const auto run = [&](const std::vector<std::pair<int, int>>& cuts) {
    std::vector<DeltaState> states(cuts.size(), DeltaState(shape));
    std::vector<DeltaPiece> pieces;
    for (size_t i = 0; i < cuts.size(); ++i) {
      pieces.push_back({cuts[i].first, cuts[i].second, states[i].tail.data(), states[i].state.data()});
    }
    std::vector<float> out(12 * static_cast<size_t>(shape.value_features()), kPoison);
    layer.RunPieces(kernels(), executor(3), layer.projected.data(), layer.rates.data(), pieces, out.data());
    return out;
  };
  const std::vector<float> together = run({{0, 3}, {3, 1}, {4, 8}});
  const auto part = [&](const std::vector<float>& of, int first, int count) {
    const auto at = of.begin() + static_cast<std::ptrdiff_t>(first) * shape.value_features();
    return std::vector<float>(at, at + static_cast<std::ptrdiff_t>(count) * shape.value_features());
  };
  EXPECT_EQ(part(run({{0, 3}}), 0, 3), part(together, 0, 3));
  EXPECT_EQ(part(run({{3, 1}}), 3, 1), part(together, 3, 1));
  EXPECT_EQ(part(run({{4, 8}}), 4, 8), part(together, 4, 8));
}

WINNOW_FOR_EACH_TABLE(GatedDeltaTest);

}  // namespace
}  // namespace winnow
