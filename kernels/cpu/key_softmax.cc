#include "kernels/cpu/key_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/kv_layout.h"

namespace winnow {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();
static_assert(kSoftmaxRun % kBlockTokens == 0);

}  // namespace

float NormaliseRuns(float* run_scales, const float* run_sums, int num_runs) {
  float max = kEmpty;
  for (int r = 0; r < num_runs; ++r) max = std::max(max, run_scales[r]);
  if (max == kEmpty) {
    std::fill_n(run_scales, num_runs, 0.0f);
    return kEmpty;
  }
  float total = 0;
  for (int r = 0; r < num_runs; ++r) {
    run_scales[r] = std::exp(run_scales[r] - max);
    total += run_scales[r] * run_sums[r];
  }
  for (int r = 0; r < num_runs; ++r) run_scales[r] /= total;
  return max + std::log(total);
}

void RunScoreSoftmax(const ScoreSoftmaxParams& params, ExpRunFn exp_run) {
  const int num_runs = static_cast<int>(SoftmaxRuns(params.num_keys));
  for (int i = 0; i < params.num_queries; ++i) {
    float* scales = params.run_scales + static_cast<int64_t>(i) * num_runs;
    float* sums = params.scratch + static_cast<int64_t>(i) * num_runs;
    for (int r = 0; r < num_runs; ++r) {
      const int first = r * kSoftmaxRun;
      exp_run(params.scores + i * params.scores_stride + first, std::min(kSoftmaxRun, params.num_keys - first),
              &scales[r], &sums[r]);
    }
    params.lse[i] = NormaliseRuns(scales, sums, num_runs);
  }
}

void RunKeySoftmax(const KeySoftmaxParams& params, void (*key_score)(const KeyScoreParams&), ExpRunFn exp_run) {
  const KeyScoreParams& all = params.score;
  const int num_runs = static_cast<int>(SoftmaxRuns(all.num_keys));
  for (int r = 0; r < num_runs; ++r) {
    const int first = r * kSoftmaxRun;
    const int end = std::min(all.num_keys, first + kSoftmaxRun);
    KeyScoreParams run = all;
    if (all.groups == nullptr) {
      run.tiles += first / kBlockTokens;
    } else {
      run.groups += first / kKeyGroup;
    }
    run.num_keys = end - first;
    run.scores = all.scores + first;
    key_score(run);
    for (int i = 0; i < all.num_queries; ++i) {
      exp_run(run.scores + i * all.scores_stride, run.num_keys, &params.run_scales[i * num_runs + r],
              &params.scratch[i * num_runs + r]);
    }
  }
  for (int i = 0; i < all.num_queries; ++i) {
    params.lse[i] = NormaliseRuns(params.run_scales + static_cast<int64_t>(i) * num_runs,
                                  params.scratch + static_cast<int64_t>(i) * num_runs, num_runs);
  }
}

}  // namespace winnow
