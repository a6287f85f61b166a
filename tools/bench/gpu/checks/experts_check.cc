#include "tools/bench/gpu/checks/experts_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/scalar.h"
#include "kernels/device/params/expert_codes.h"
#include "tools/bench/gpu/matmul_weights.h"

namespace winnow {
namespace {

using device::ExpertMatrices;
using device::ExpertRows;

struct Shape {
  int num_experts, experts_per_token, num_shared, hidden_size, intermediate_size;
  bool shared_gate = false, normalizes = true;
  bool biases = false, sigmoid = false, mxfp4 = false;
  device::GatedActivation activation = device::GatedActivation::kSilu;
  int groups = 1, groups_per_token = 1, group_scores = 2;
};

std::string Name(const Shape& shape) {
  return absl::StrCat(
      shape.experts_per_token, " of ", shape.num_experts, " experts",
      shape.num_shared > 0 ? absl::StrCat(" and ", shape.num_shared, " shared") : "", ", ", shape.hidden_size, "x",
      shape.intermediate_size, shape.biases ? ", biases" : "", shape.sigmoid ? ", sigmoids" : "",
      shape.mxfp4 ? ", MXFP4" : "",
      shape.groups > 1 ? absl::StrCat(", ", shape.groups_per_token, " of ", shape.groups, " groups") : "");
}

// What sums in f32 may be off by, of products whose magnitudes add up to this: each mma adds 16 products with the error
// of one truncated addition of the largest term.
double SumError(double magnitude, int terms) {
  return magnitude * (terms / 16.0 + 16) * std::ldexp(1.0, -22);
}

struct Sum {
  double value = 0, magnitude = 0;

  void Add(double term) {
    value += term;
    magnitude += std::fabs(term);
  }
};
Sum Dot(const uint16_t* weight, const uint16_t* x, int count) {
  Sum sum;
  for (int k = 0; k < count; ++k) {
    sum.Add(double{Bf16ToF32(weight[k])} * Bf16ToF32(x[k]));
  }
  return sum;
}

// On the device.
struct Matrices {
  const void* data = nullptr;
  const uint8_t* scales = nullptr;
};

// Random codes with scales around those of bf16 of the same use, every code among them; what they mean is exact in bf16
// and goes to `values`.
Matrices RandomCodes(GpuContext& gpu, size_t elements, int in, std::vector<uint16_t>& values) {
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  std::vector<uint32_t> words(elements / 8);
  std::vector<uint8_t> scales(elements / device::kExpertBlock);
  values.resize(elements);
  const int usual = 127 - static_cast<int>(std::lround(std::log2(2.9 * std::sqrt(in))));
  for (size_t block = 0; block < scales.size(); ++block) {
    // Some as small and as large as there may be.
    scales[block] = static_cast<uint8_t>(block % 97 == 5 ? 60 : usual - 2 + static_cast<int>(gpu.random() % 4));
    for (size_t i = block * device::kExpertBlock; i < (block + 1) * device::kExpertBlock; i += 8) {
      const auto in_order = static_cast<uint32_t>(gpu.random());
      words[i / 8] = device::ExpertCodeWord(in_order);
      for (size_t k = 0; k < 8; ++k) {
        const uint32_t code = in_order >> (4 * k) & 15;
        const float value = std::ldexp(kMagnitudes[code & 7], scales[block] - 127);
        values[i + k] = F32ToBf16((code & 8) != 0 ? -value : value);
      }
    }
  }
  return {.data = gpu.Upload(words), .scales = gpu.Upload(scales)};
}

// A sparse layer with random weights, here and on the device, and what its kernels leave of some rows.
class ExpertsCheck {
 public:
  ExpertsCheck(GpuContext& gpu, const Shape& shape, int max_rows)
      : gpu_(gpu), shape_(shape), name_("experts " + Name(shape)), max_rows_(max_rows) {
    const size_t all = shape.num_experts + shape.num_shared;
    const size_t elements = all * shape.hidden_size * shape.intermediate_size;
    Matrices gate_up, down;
    if (shape.mxfp4) {
      gate_up = RandomCodes(gpu, 2 * elements, shape.hidden_size, gate_up_);
      down = RandomCodes(gpu, elements, shape.intermediate_size, down_);
    } else {
      gate_up_ = RandomBf16(gpu, 2 * elements, 1 / std::sqrt(static_cast<float>(shape.hidden_size)));
      down_ = RandomBf16(gpu, elements, 1 / std::sqrt(static_cast<float>(shape.intermediate_size)));
      gate_up.data = gpu.Upload(gate_up_);
      down.data = gpu.Upload(down_);
    }
    x_ = RandomBf16(gpu, static_cast<size_t>(max_rows) * shape.hidden_size, 1);
    experts_ = {.mxfp4 = shape.mxfp4,
                .gate_up = gate_up.data,
                .down = down.data,
                .gate_up_scales = gate_up.scales,
                .down_scales = down.scales,
                .activation = shape.activation,
                .num_experts = shape.num_experts,
                .num_shared = shape.num_shared,
                .shared_gate = shape.shared_gate,
                .hidden_size = shape.hidden_size,
                .intermediate_size = shape.intermediate_size,
                .experts_per_token = shape.experts_per_token,
                .sigmoid = shape.sigmoid,
                .normalizes = shape.normalizes,
                .scale = 1.25f,
                .groups = shape.groups,
                .groups_per_token = shape.groups_per_token,
                .group_scores = shape.group_scores};
    std::normal_distribution<float> normal(0, 2 / std::sqrt(static_cast<float>(shape.hidden_size)));
    router_.resize(static_cast<size_t>(experts_.num_logits()) * shape.hidden_size);
    for (float& value : router_) value = normal(gpu.random);
    experts_.router = gpu.Upload(router_);
    AddVectors();
    device_x_ = gpu.Upload(x_);
    device::Arena counting(nullptr);
    device::RoutedRows::Take(counting, experts_, max_rows);
    device::Arena arena(gpu.NewZeroed<uint8_t>(counting.used_bytes()));
    routed_ = device::RoutedRows::Take(arena, experts_, max_rows);
    hidden_ = gpu.New<uint16_t>(static_cast<size_t>(routed_.max_pairs) * shape.intermediate_size);
    sums_ = gpu.New<float>(static_cast<size_t>(routed_.max_pairs) * shape.hidden_size);
  }

  void Run(ExpertRows rows, int num_rows) {
    const std::string what = absl::StrCat(name_, rows == ExpertRows::kFew ? ", step of " : ", chunk of ", num_rows);
    const std::vector<float> residual = Compute(rows, 0, num_rows);
    CheckRouting(what, num_rows);
    CheckProducts(what, num_rows, residual);
  }

  // The same rows among others, in other places.
  void CheckRowInvariance(ExpertRows rows, int num_rows) {
    const size_t hidden = shape_.hidden_size;
    const std::vector<float> all = Compute(rows, 0, num_rows);
    double differ = 0;
    for (const int count : {1, 3, 8, 9, 17, 33}) {
      for (const int first : {0, num_rows - count}) {
        if (first < 0) continue;
        const std::vector<float> some = Compute(rows, first, count);
        for (size_t i = 0; i < some.size(); ++i) {
          differ += std::bit_cast<uint32_t>(some[i]) != std::bit_cast<uint32_t>(all[first * hidden + i]);
        }
      }
    }
    gpu_.report.Check(
        absl::StrCat(name_, rows == ExpertRows::kFew ? ", step" : ", chunk", ", bits that depend on other rows"),
        differ, 0);
  }

 private:
  void AddVectors() {
    const auto random = [&](size_t count, float deviation) {
      std::vector<float> values(count);
      std::normal_distribution<float> normal(0, deviation);
      for (float& value : values) value = normal(gpu_.random);
      return values;
    };
    const size_t all = experts_.num_all();
    router_bias_.assign(experts_.num_logits(), 0);
    gate_up_bias_.assign(all * 2 * shape_.intermediate_size, 0);
    down_bias_.assign(all * shape_.hidden_size, 0);
    correction_.assign(shape_.num_experts, 0);
    if (shape_.sigmoid) {
      correction_ = random(correction_.size(), 0.3f);
      experts_.correction = gpu_.Upload(correction_);
    }
    if (!shape_.biases) return;
    experts_.router_bias = gpu_.Upload(router_bias_ = random(router_bias_.size(), 1));
    experts_.gate_up_bias = gpu_.Upload(gate_up_bias_ = random(gate_up_bias_.size(), 3));  // some are clamped
    experts_.down_bias = gpu_.Upload(down_bias_ = random(down_bias_.size(), 1));
  }

  static float Residual(size_t at) { return static_cast<float>(at % 17) - 8; }

  // Rows [first, first + num_rows) of x; returns what a residual of known values becomes.
  std::vector<float> Compute(ExpertRows rows, int first, int num_rows) {
    const size_t hidden = shape_.hidden_size;
    std::vector<float> residual(num_rows * hidden);
    for (size_t i = 0; i < residual.size(); ++i) residual[i] = Residual(first * hidden + i);
    float* const device_residual = gpu_.Upload(residual);
    const uint16_t* const x = device_x_ + first * hidden;
    const device::ExpertKernels& kernels = *gpu_.table.experts;
    kernels.route(gpu_.stream, rows, {.experts = experts_, .x = x, .num_rows = num_rows, .routed = routed_});
    kernels.gate_up(gpu_.stream, rows,
                    {.experts = experts_, .routed = routed_, .x = x, .num_rows = num_rows, .out = hidden_});
    kernels.down(gpu_.stream, rows,
                 {.experts = experts_, .routed = routed_, .x = hidden_, .num_rows = num_rows, .out = sums_});
    kernels.add(
        gpu_.stream,
        {.experts = experts_, .routed = routed_, .pairs = sums_, .num_rows = num_rows, .residual = device_residual});
    return gpu_.Download(device_residual, residual.size());
  }

  double Logit(int row, int logit) const {
    double sum = router_bias_[logit];
    for (int k = 0; k < shape_.hidden_size; ++k) {
      sum += double{router_[static_cast<size_t>(logit) * shape_.hidden_size + k]} *
             Bf16ToF32(x_[static_cast<size_t>(row) * shape_.hidden_size + k]);
    }
    return sum;
  }

  // Takes experts of other groups than the best out of the choice. Returns whether errors of f32 sums may decide which
  // these are.
  bool LeaveBestGroups(std::vector<double>& choice) const {
    const int size = shape_.num_experts / shape_.groups;
    std::vector<std::pair<double, int>> sums;
    for (int group = 0; group < shape_.groups; ++group) {
      std::vector<double> of_group(choice.begin() + group * size, choice.begin() + (group + 1) * size);
      std::sort(of_group.rbegin(), of_group.rend());
      sums.emplace_back(of_group[0] + (size > 1 && shape_.group_scores > 1 ? of_group[1] : 0), group);
    }
    std::sort(sums.rbegin(), sums.rend());
    for (int i = shape_.groups_per_token; i < shape_.groups; ++i) {
      std::fill_n(choice.begin() + sums[i].second * size, size, -INFINITY);
    }
    return shape_.groups > shape_.groups_per_token &&
           sums[shape_.groups_per_token - 1].first - sums[shape_.groups_per_token].first < 1e-4;
  }

  // The chosen are the best but for errors of f32 sums, their weights those of a softmax, and pairs are a permutation.
  void CheckRouting(const std::string& what, int num_rows) {
    const size_t per_row = experts_.pairs_per_row(), chosen = shape_.experts_per_token, pairs = num_rows * per_row;
    const std::vector<uint32_t> experts = gpu_.Download(routed_.experts, pairs);
    const std::vector<uint32_t> places = gpu_.Download(routed_.places, pairs);
    const std::vector<uint32_t> first = gpu_.Download(routed_.first, experts_.num_all() + 1);
    const std::vector<float> shares = gpu_.Download(routed_.shares, pairs);
    rows_ = gpu_.Download(routed_.rows, pairs);
    weights_ = gpu_.Download(routed_.weights, pairs);
    experts_of_.assign(pairs, 0);
    double wrong = 0, worst_choice = 0, worst_weight = 0;
    std::vector<bool> taken(pairs);
    for (int row = 0; row < num_rows; ++row) {
      // What decides, and what the chosen weigh before they are normalised.
      std::vector<double> choice, weigh;
      for (int i = 0; i < shape_.num_experts; ++i) choice.push_back(Logit(row, i));
      const double largest = *std::max_element(choice.begin(), choice.end());
      double total = 0, of_chosen = 0, least = INFINITY;
      for (int i = 0; i < shape_.num_experts; ++i) {
        weigh.push_back(shape_.sigmoid ? 1 / (1 + std::exp(-choice[i])) : std::exp(choice[i] - largest));
        total += weigh[i];
        if (shape_.sigmoid) choice[i] = weigh[i] + correction_[i];
      }
      const bool is_close = LeaveBestGroups(choice);
      std::vector<bool> is_chosen(choice.size());
      for (size_t i = 0; i < per_row; ++i) {
        const uint32_t expert = experts[row * per_row + i], pair = places[row * per_row + i];
        if (i > 0 && expert <= experts[row * per_row + i - 1]) ++wrong;
        if (pair >= pairs || taken[pair] || rows_[pair] != static_cast<uint32_t>(row) || pair < first[expert] ||
            pair >= first[expert + 1] || weights_[pair] != shares[row * per_row + i]) {
          ++wrong;
          continue;
        }
        taken[pair] = true;
        experts_of_[pair] = expert;
        if (i >= chosen) continue;
        is_chosen[expert] = true;
        least = std::min(least, choice[expert]);
        of_chosen += weigh[expert];
      }
      for (size_t i = 0; i < choice.size(); ++i) {
        if (!is_chosen[i] && !is_close) worst_choice = std::max(worst_choice, choice[i] - least);
      }
      for (size_t i = 0; i < per_row; ++i) {
        const uint32_t expert = experts[row * per_row + i];
        double want = 1;
        if (i < chosen) {
          want = 1.25 * weigh[expert] / (shape_.normalizes ? of_chosen : shape_.sigmoid ? 1 : total);
        } else if (shape_.shared_gate) {
          want = 1 / (1 + std::exp(-Logit(row, shape_.num_experts)));
        }
        worst_weight = std::max(worst_weight, std::fabs(shares[row * per_row + i] - want) / want);
      }
    }
    gpu_.report.Check(what + ", pairs", wrong, 0);
    gpu_.report.Check(what + ", choice", worst_choice, 1e-4);
    gpu_.report.Check(what + ", weights", worst_weight, 1e-4);
  }

  // Of some pairs every output, and all residuals from what their pairs gave.
  void CheckProducts(const std::string& what, int num_rows, const std::vector<float>& residual) {
    const size_t hidden = shape_.hidden_size, width = shape_.intermediate_size, per_row = experts_.pairs_per_row();
    const size_t pairs = num_rows * per_row;
    const std::vector<uint16_t> activated = gpu_.Download(hidden_, pairs * width);
    const std::vector<float> sums = gpu_.Download(sums_, pairs * hidden);
    double worst_gate_up = 0, worst_down = 0;
    const auto worst = [](double& of, double error) {
      if (!(error <= of)) of = error;
    };
    for (size_t pair = 0; pair < pairs; pair += std::max<size_t>(1, pairs / 40)) {
      const size_t expert = experts_of_[pair];
      const uint16_t* const gate = &gate_up_[expert * 2 * width * hidden];
      const uint16_t* const down = &down_[expert * width * hidden];
      for (size_t i = 0; i < width; ++i) {
        Sum g = Dot(gate + i * hidden, &x_[rows_[pair] * hidden], shape_.hidden_size);
        Sum u = Dot(gate + (width + i) * hidden, &x_[rows_[pair] * hidden], shape_.hidden_size);
        g.Add(gate_up_bias_[expert * 2 * width + i]);
        u.Add(gate_up_bias_[expert * 2 * width + width + i]);
        double slope = 1, up = u.value, value = g.value;
        if (shape_.activation == device::GatedActivation::kClampedSilu) {
          slope = 1.702;
          value = std::min(value, 7.0);
          up = std::clamp(up, -7.0, 7.0) + 1;
        }
        const double silu = value / (1 + std::exp(-slope * value)), want = silu * up;
        const double allowed = std::fabs(want) / 256 +
                               1.1 * slope * SumError(g.magnitude, shape_.hidden_size) * std::fabs(up) +
                               std::fabs(silu) * SumError(u.magnitude, shape_.hidden_size) + 1e-12;
        worst(worst_gate_up, std::fabs(Bf16ToF32(activated[pair * width + i]) - want) / allowed);
      }
      for (size_t i = 0; i < hidden; ++i) {
        Sum sum = Dot(down + i * width, &activated[pair * width], shape_.intermediate_size);
        sum.Add(down_bias_[expert * hidden + i]);
        const double allowed = weights_[pair] * (SumError(sum.magnitude, shape_.intermediate_size) + 1e-12);
        worst(worst_down, std::fabs(sums[pair * hidden + i] - weights_[pair] * sum.value) / allowed);
      }
    }
    gpu_.report.Check(what + ", gate and up", worst_gate_up, 1);
    gpu_.report.Check(what + ", down", worst_down, 1);

    const std::vector<uint32_t> places = gpu_.Download(routed_.places, pairs);
    double differ = 0;
    for (size_t at = 0; at < residual.size(); ++at) {
      float sum = 0;
      for (size_t i = 0; i < per_row; ++i) sum += sums[places[at / hidden * per_row + i] * hidden + at % hidden];
      differ += residual[at] != Residual(at) + sum;
    }
    gpu_.report.Check(what + ", sums", differ, 0);
  }

  GpuContext& gpu_;
  const Shape shape_;
  const std::string name_;
  const int max_rows_;
  std::vector<uint16_t> gate_up_, down_, x_;
  std::vector<float> router_, router_bias_, correction_, gate_up_bias_, down_bias_;
  ExpertMatrices experts_;
  device::RoutedRows routed_;
  uint16_t* device_x_ = nullptr;
  uint16_t* hidden_ = nullptr;
  float* sums_ = nullptr;
  // Of the rows that were computed last, by pair.
  std::vector<uint32_t> rows_, experts_of_;
  std::vector<float> weights_;
};

}  // namespace

void CheckExperts(GpuContext& gpu) {
  for (const Shape& shape : {Shape{16, 4, 0, 1024, 768}, Shape{6, 3, 2, 96, 40, true, false}, Shape{8, 2, 0, 256, 336},
                             Shape{128, 8, 1, 64, 48},
                             Shape{.num_experts = 32,
                             .experts_per_token = 4,
                             .num_shared = 0,
                             .hidden_size = 360,
                             .intermediate_size = 360,
                             .biases = true,
                             .activation = device::GatedActivation::kClampedSilu},
                             Shape{.num_experts = 48,
                             .experts_per_token = 6,
                             .num_shared = 1,
                             .hidden_size = 128,
                             .intermediate_size = 96,
                             .sigmoid = true},
                             Shape{.num_experts = 32,
                             .experts_per_token = 4,
                             .num_shared = 0,
                             .hidden_size = 352,
                             .intermediate_size = 288,
                             .biases = true,
                             .mxfp4 = true,
                             .activation = device::GatedActivation::kClampedSilu},
                             Shape{.num_experts = 8,
                             .experts_per_token = 2,
                             .num_shared = 0,
                             .hidden_size = 2880,
                             .intermediate_size = 96,
                             .mxfp4 = true},
                             Shape{.num_experts = 256,
                             .experts_per_token = 8,
                             .num_shared = 1,
                             .hidden_size = 64,
                             .intermediate_size = 32,
                             .sigmoid = true,
                             .groups = 8,
                             .groups_per_token = 4},
                             Shape{.num_experts = 40,
                             .experts_per_token = 3,
                             .num_shared = 0,
                             .hidden_size = 64,
                             .intermediate_size = 32,
                             .normalizes = false,
                             .groups = 40,
                             .groups_per_token = 7,
                             .group_scores = 1}}) {
    ExpertsCheck check(gpu, shape, 400);
    for (const int num_rows : gpu.Cases(std::vector<int>{1, 2, 7, 16, 40, 64})) check.Run(ExpertRows::kFew, num_rows);
    for (const int num_rows : gpu.Cases(std::vector<int>{1, 100, 400})) check.Run(ExpertRows::kMany, num_rows);
    check.CheckRowInvariance(ExpertRows::kFew, 64);
    check.CheckRowInvariance(ExpertRows::kMany, 400);
    gpu.FreeAll();
  }
}

}  // namespace winnow
