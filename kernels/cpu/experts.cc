#include "kernels/cpu/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "kernels/cpu/cpu_executor.h"

namespace winnow {
namespace {

// Rows that a worker takes at a time: waking it costs more than a few of them.
constexpr int kGrain = 4;
constexpr int kMaxGroups = 64;

// Calls body(row, worker) for all rows, on the team where that is worth it.
template <typename F>
void ForRows(Executor& executor, int num_rows, const F& body) {
  if (num_rows <= kGrain) {
    for (int row = 0; row < num_rows; ++row) body(row, 0);
    return;
  }
  CpuExecutor::From(executor).team.ParallelFor(num_rows, body, kGrain);
}

// Keeps of each row's experts the `count` largest, ties to the lower one: `best` best first.
class BestExperts {
 public:
  BestExperts(int count, uint32_t* best) : count_(count), best_(best) {}
  void Offer(uint32_t expert, const float* values) {
    int at = held_;
    while (at > 0 && values[best_[at - 1]] < values[expert]) --at;
    if (at == count_) return;
    held_ = std::min(held_ + 1, count_);
    for (int i = held_ - 1; i > at; --i) best_[i] = best_[i - 1];
    best_[at] = expert;
  }

 private:
  const int count_;
  uint32_t* const best_;
  int held_ = 0;
};

// Marks the groups that take part, by the sum of their largest values.
void ChooseGroups(const RouteParams& p, const float* values, bool* takes_part) {
  const int size = p.num_experts / p.groups;
  float sums[kMaxGroups];
  for (int group = 0; group < p.groups; ++group) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = group * size; i < (group + 1) * size; ++i) {
      if (values[i] > first) {
        second = first;
        first = values[i];
      } else {
        second = std::max(second, values[i]);
      }
    }
    sums[group] = size == 1 || p.group_scores == 1 ? first : first + second;
  }
  uint32_t best[kMaxGroups];
  BestExperts chosen(p.groups_per_token, best);
  for (int group = 0; group < p.groups; ++group) chosen.Offer(static_cast<uint32_t>(group), sums);
  std::fill(takes_part, takes_part + p.groups, false);
  for (int i = 0; i < p.groups_per_token; ++i) takes_part[best[i]] = true;
}

// `probabilities` and `values` [num_experts] are scratch.
void RouteRow(const RouteParams& p, int row, float* probabilities, float* values) {
  const float* logits = p.logits + static_cast<int64_t>(row) * p.num_experts;
  uint32_t* experts = p.experts + static_cast<int64_t>(row) * p.experts_per_token;
  float* weights = p.weights + static_cast<int64_t>(row) * p.experts_per_token;
  if (p.sigmoid) {
    for (int i = 0; i < p.num_experts; ++i) probabilities[i] = 1 / (1 + std::exp(-logits[i]));
  } else {
    const float largest = *std::max_element(logits, logits + p.num_experts);
    float total = 0;
    for (int i = 0; i < p.num_experts; ++i) {
      probabilities[i] = std::exp(logits[i] - largest);
      total += probabilities[i];
    }
    for (int i = 0; i < p.num_experts; ++i) probabilities[i] /= total;
  }
  // Of a softmax alone logits have the order of the probabilities, which underflow.
  const float* choice = p.sigmoid ? probabilities : logits;
  if (p.correction != nullptr) {
    for (int i = 0; i < p.num_experts; ++i) values[i] = probabilities[i] + p.correction[i];
    choice = values;
  }
  bool takes_part[kMaxGroups] = {true};
  if (p.groups > 1) ChooseGroups(p, choice, takes_part);
  const int group_size = p.num_experts / p.groups;
  BestExperts best(p.experts_per_token, experts);
  for (int i = 0; i < p.num_experts; ++i) {
    if (takes_part[i / group_size]) best.Offer(static_cast<uint32_t>(i), choice);
  }
  std::sort(experts, experts + p.experts_per_token);
  float total = p.normalizes ? 0 : 1;
  for (int i = 0; p.normalizes && i < p.experts_per_token; ++i) total += probabilities[experts[i]];
  for (int i = 0; i < p.experts_per_token; ++i) weights[i] = p.scale * (probabilities[experts[i]] / total);
}

}  // namespace

void RouteExperts(Executor& executor, const RouteParams& params) {
  WINNOW_CHECK(params.groups >= 1 && params.groups <= kMaxGroups && params.num_experts % params.groups == 0);
  WINNOW_CHECK(params.groups_per_token >= 1 && params.groups_per_token <= params.groups);
  WINNOW_CHECK(params.experts_per_token >= 1 &&
               params.experts_per_token <= params.num_experts / params.groups * params.groups_per_token);
  CpuExecutor& cpu = CpuExecutor::From(executor);
  const auto scratch_floats = 2 * static_cast<size_t>(params.num_experts);
  for (GrowBuffer& buffer : cpu.worker_scratch) buffer.ReserveArray<float>(scratch_floats);
  ForRows(executor, params.num_rows, [&](int row, int worker) {
    float* scratch = cpu.worker_scratch[worker].ReserveArray<float>(scratch_floats);
    RouteRow(params, row, scratch, scratch + params.num_experts);
  });
}

void TakeRows(Executor& executor, const TakeRowsParams& params) {
  const auto width = static_cast<int64_t>(params.width);
  ForRows(executor, params.num_rows, [&](int i, int) {
    std::memcpy(params.out + i * width, params.x + params.rows[i] * width, static_cast<size_t>(width) * sizeof(float));
  });
}

void AddScaledRows(Executor& executor, const AddScaledRowsParams& params) {
  const auto width = static_cast<int64_t>(params.width);
  ForRows(executor, params.num_rows, [&](int i, int) {
    const float* __restrict from = params.x + i * width;
    float* __restrict to = params.y + params.rows[i] * width;
    const float scale = params.scales[i];
    for (int64_t c = 0; c < width; ++c) to[c] += scale * from[c];
  });
}

void AddNormed(Executor& executor, const AddNormedParams& params) {
  const auto width = static_cast<int64_t>(params.width);
  ForRows(executor, params.num_rows, [&](int row, int) {
    const float* __restrict x = params.x + row * width;
    float* __restrict y = params.y + row * width;
    float lanes[16] = {};
    int64_t c = 0;
    for (; c + 16 <= width; c += 16) {
      for (int lane = 0; lane < 16; ++lane) lanes[lane] += x[c + lane] * x[c + lane];
    }
    for (int lane = 0; c < width; ++c, ++lane) lanes[lane] += x[c] * x[c];
    float sum = 0;
    for (const float lane : lanes) sum += lane;
    const float scale = 1 / std::sqrt(sum / static_cast<float>(width) + params.norm_epsilon);
    for (c = 0; c < width; ++c) y[c] += x[c] * scale * params.norm_weight[c];
  });
}

}  // namespace winnow
