#include <algorithm>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/philox.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/step/sample.h"

// A row is sampled by one cluster, each CTA with a run of the vocabulary in its shared memory. Tokens are ordered by
// descending logit, then ascending id; nothing is sorted. Every question the sampler asks (which token is the k-th,
// where do probabilities reach p, which token does a uniform fall on) is: at which token of that order does a sum of
// weights reach a target. A histogram of the distances from the largest logit narrows it to a bin of few tokens, a
// second one to usually one logit; where several are left, histograms of the bytes of the logits settle it.

namespace winnow::device {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBins = kThreads;
constexpr int kClusterCtas = 8;
constexpr int kUnitBits = 44;  // of fixed-point probabilities, relative to the largest: 2^19 tokens fit 64 bits
constexpr int kLimbs = 3;
constexpr int kMaxReductions = 8;
constexpr uint32_t kMaxCandidates = 2048;

// Descending order of logits as ascending integers; +0 and -0 are equal.
__device__ uint32_t OrderKey(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  return (bits >> 31) != 0 ? bits : ~(bits | 0x80000000u);
}
__device__ float LogitOfKey(uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key : ~key & 0x7fffffffu);
}

// The tokens up to one: those of smaller keys, and the first `ties` of its own key.
struct Prefix {
  uint32_t key = 0xffffffffu;
  uint32_t ties = 0xffffffffu;
};

// exp(x) * 2^44 for -32 < x <= 0, to one unit: 2^k by its exponent, e^f for |f| <= ln 2 / 2 by its series.
__device__ uint64_t FixedExp(double x) {
  const int k = __double2int_rn(x * 1.4426950408889634);
  const double f = fma(static_cast<double>(k), -0.69314718055994531, x);
  double series = 1;
#pragma unroll
  for (int i = 11; i > 0; --i) series = fma(series * (1.0 / i), f, 1.0);
  return static_cast<uint64_t>(__double2ll_rn(series * __hiloint2double((1023 + kUnitBits + k) << 20, 0)));
}

template <int kCtas>
class RowSampler {
 public:
  struct Shared {
    uint64_t bins[2][kBins];
    uint32_t limbs[kLimbs][kBins];
    uint64_t slots[kMaxReductions];
    uint64_t warps[kWarps];
    uint32_t candidates[kMaxCandidates];  // keys
    uint32_t num_candidates;
    uint64_t found_before;
    uint32_t found_bin;
  };

  // `keys` is room for `count` order keys at the temperature, where `logits` may lie too; null: keys are computed
  // wherever they are needed.
  __device__ RowSampler(const float* logits, uint32_t* keys, uint32_t first_id, uint32_t count, float temperature,
                        Shared& shared)
      : logits_(logits), keys_(keys), first_id_(first_id), count_(count), temperature_(temperature), shared_(shared) {}

  // The first token of the order at temperature 1.
  __device__ uint32_t Largest() {
    uint64_t best = ~uint64_t{0};  // key, then id
    for (uint32_t i = threadIdx.x; i < count_; i += kThreads) {
      const float logit = logits_[i];
      if (logit == logit) best = min(best, uint64_t{OrderKey(logit)} << 32 | (first_id_ + i));
    }
    best = Reduce(best, [](uint64_t a, uint64_t b) { return min(a, b); });
    largest_ = LogitOfKey(static_cast<uint32_t>(best >> 32));
    return best == ~uint64_t{0} ? 0 : static_cast<uint32_t>(best);
  }

  // log sum exp(logits), at temperature 1.
  __device__ double LogSum() {
    double sum = 0;
    for (uint32_t i = threadIdx.x; i < count_; i += kThreads) sum += expf(logits_[i] - largest_);
    const uint64_t bits = Reduce(__double_as_longlong(sum), [](uint64_t a, uint64_t b) {
      return static_cast<uint64_t>(__double_as_longlong(__longlong_as_double(a) + __longlong_as_double(b)));
    });
    return largest_ + log(__longlong_as_double(bits));
  }

  // Overwrites the logits. `otherwise` where none is finite.
  __device__ uint32_t Draw(const SampleRow& row, uint32_t vocab_size, uint32_t otherwise) {
    scaled_largest_ = largest_ / temperature_;
    if (keys_ != nullptr) {
      for (uint32_t i = threadIdx.x; i < count_; i += kThreads) keys_[i] = OrderKey(logits_[i] / temperature_);
      __syncthreads();
    }
    Prefix kept;
    if (row.top_k > 0 && row.top_k < vocab_size) {
      kept = Reach(
          kept, [](uint32_t) { return uint64_t{1}; }, [&](uint64_t) { return uint64_t{row.top_k}; });
    }
    // Masses of the last coarse bin are 0, so that sums of masses are complete.
    if (row.top_p < 1) {
      kept = Reach(
          kept, [this](uint32_t key) { return Mass(key); },
          [&](uint64_t total) {
            const double target = ceil(static_cast<double>(row.top_p) * static_cast<double>(total));
            return min(max(static_cast<uint64_t>(target), uint64_t{1}), total);
          });
    }
    const double least = static_cast<double>(row.min_p) * static_cast<double>(uint64_t{1} << kUnitBits);
    const double uniform = PhiloxUniform(row.seed, row.sample_index, row.token_index);
    const Prefix drawn = Reach(
        kept,
        [this, least](uint32_t key) {
          const uint64_t mass = Mass(key);
          return static_cast<double>(mass) >= least ? mass : uint64_t{0};
        },
        [&](uint64_t total) { return min(static_cast<uint64_t>(uniform * static_cast<double>(total)) + 1, total); });
    return drawn.ties == 0 ? otherwise : IdOf(drawn);
  }

 private:
  __device__ uint32_t Key(uint32_t i) const {
    return keys_ != nullptr ? keys_[i] : OrderKey(logits_[i] / temperature_);
  }

  // exp(logit - largest) in units of 2^-44.
  __device__ uint64_t Mass(uint32_t key) const {
    const double distance = static_cast<double>(LogitOfKey(key)) - scaled_largest_;
    return distance > -32 ? FixedExp(distance) : 0;
  }

  // Distance from the largest logit in steps of 1/32; the last bin has all that is further, and what is not a number.
  __device__ uint32_t CoarseBin(uint32_t key) const {
    const float steps = (scaled_largest_ - LogitOfKey(key)) * 32;
    return steps < kBins - 1 ? static_cast<uint32_t>(steps) : kBins - 1;
  }
  // In steps of 2^-15, within a coarse bin that is not the last.
  __device__ uint32_t FineBin(uint32_t key) const {
    return static_cast<uint32_t>((scaled_largest_ - LogitOfKey(key)) * (32.0f * kBins)) % kBins;
  }

  // Over the cluster; every thread gets the result.
  template <typename Op>
  __device__ uint64_t Reduce(uint64_t value, Op op) {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      value = op(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    __syncthreads();  // shared_.warps is free
    if (threadIdx.x % kWarp == 0) shared_.warps[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = shared_.warps[threadIdx.x % kWarp];
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      value = op(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    uint64_t* slot = &shared_.slots[reductions_++];  // each is used once, so that nobody has to wait for readers
    if (threadIdx.x == 0) *slot = value;
    Cluster<kCtas>::Sync();
    value = Cluster<kCtas>::Read(slot, 0);
#pragma unroll
    for (int rank = 1; rank < kCtas; ++rank) value = op(value, Cluster<kCtas>::Read(slot, rank));
    return value;
  }

  // The sum of the values of threads up to this one, and of all.
  __device__ uint64_t InclusiveScan(uint64_t value, uint64_t* total) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const auto scan_warp = [lane](uint64_t v) {
#pragma unroll
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const uint64_t other = __shfl_up_sync(0xffffffffu, v, distance);
        if (lane >= distance) v += other;
      }
      return v;
    };
    value = scan_warp(value);
    __syncthreads();  // shared_.warps is free
    if (lane == kWarp - 1) shared_.warps[warp] = value;
    __syncthreads();
    const uint64_t warps = scan_warp(shared_.warps[lane]);
    *total = __shfl_sync(0xffffffffu, warps, kWarp - 1);
    const uint64_t before = __shfl_sync(0xffffffffu, warps, warp == 0 ? 0 : warp - 1);
    return warp == 0 ? value : value + before;
  }

  // Calls visit(key, times) for this thread's part of a prefix. The border's ties are one visit, of one thread.
  template <typename Visit>
  __device__ void ForEach(const Prefix& prefix, Visit visit) const {
    for (uint32_t i = threadIdx.x; i < count_; i += kThreads) {
      const uint32_t key = Key(i);
      if (key < prefix.key) visit(key, 1u);
    }
    if (first_id_ == 0 && threadIdx.x == 0 && prefix.key != 0xffffffffu) visit(prefix.key, prefix.ties);
  }

  // The sums over all CTAs of bin threadIdx.x: fill(add) calls add(bin, weight) for this thread's tokens. Native
  // additions are of 32 bits: weights are summed in limbs of 16, which 2^16 tokens do not overflow.
  template <typename Fill>
  __device__ uint64_t Histogram(Fill fill) {
    uint64_t* bins = shared_.bins[parity_];
    parity_ ^= 1;  // the last reader of these bins has passed the cluster's barrier of the histogram between
    const bool fits_limbs = count_ <= 1u << 16;
    if (threadIdx.x < kBins) {
      bins[threadIdx.x] = 0;
#pragma unroll
      for (int i = 0; i < kLimbs; ++i) shared_.limbs[i][threadIdx.x] = 0;
    }
    __syncthreads();
    fill([&](uint32_t bin, uint64_t weight) {
      if (!fits_limbs || weight >> 48 != 0) {  // the latter: many ties at once
        atomicAdd(reinterpret_cast<unsigned long long*>(&bins[bin]), weight);
        return;
      }
#pragma unroll
      for (int i = 0; i < kLimbs; ++i) {
        const uint32_t limb = weight >> (16 * i) & 0xffff;
        if (limb != 0) atomicAdd(&shared_.limbs[i][bin], limb);
      }
    });
    __syncthreads();
    if (threadIdx.x < kBins) {
#pragma unroll
      for (int i = 0; i < kLimbs; ++i) bins[threadIdx.x] += uint64_t{shared_.limbs[i][threadIdx.x]} << (16 * i);
    }
    Cluster<kCtas>::Sync();
    uint64_t sum = 0;
    if (threadIdx.x < kBins) {
#pragma unroll
      for (int rank = 0; rank < kCtas; ++rank) sum += Cluster<kCtas>::Read(&bins[threadIdx.x], rank);
    }
    return sum;
  }

  // The bin in which the weights reach *target, which is reduced by what lies before it; the last where none does.
  template <typename Target>
  __device__ uint32_t FindBin(uint64_t weight, uint64_t* target, Target target_of_total) {
    uint64_t total;
    const uint64_t up_to = InclusiveScan(weight, &total);
    *target = target_of_total(total);
    if (*target == 0) return 0;
    if (up_to - weight < *target && (up_to >= *target || threadIdx.x == kBins - 1)) {
      shared_.found_bin = threadIdx.x;
      shared_.found_before = up_to - weight;
    }
    __syncthreads();
    *target -= shared_.found_before;
    return shared_.found_bin;
  }

  // The shortest prefix within `within` whose weights, a function of the key, reach a target: what target_of_total
  // makes of the sum of those above the last coarse bin. A target of 0 gives a prefix without ties.
  template <typename Weight, typename Target>
  __device__ Prefix Reach(const Prefix& within, Weight weight, Target target_of_total) {
    uint64_t target = 0;
    // Tokens of the last bin, usually the most and without mass, are not counted: a target beyond the others is there.
    const uint64_t coarse_weights = Histogram([&](auto add) {
      ForEach(within, [&](uint32_t key, uint32_t times) {
        const uint32_t bin = CoarseBin(key);
        if (bin < kBins - 1) add(bin, weight(key) * times);
      });
    });
    const uint32_t coarse = FindBin(coarse_weights, &target, target_of_total);
    if (target == 0) return {0, 0};

    // The tokens of that bin, where there is room for them.
    if (threadIdx.x == 0) shared_.num_candidates = 0;
    __syncthreads();
    ForEach(within, [&](uint32_t key, uint32_t times) {
      if (CoarseBin(key) != coarse || key == within.key) return;
      const uint32_t at = atomicAdd(&shared_.num_candidates, 1u);
      if (at < kMaxCandidates) shared_.candidates[at] = key;
    });
    __syncthreads();
    const auto for_candidates = [&](auto visit) {
      if (shared_.num_candidates > kMaxCandidates) {
        ForEach(within, [&](uint32_t key, uint32_t times) {
          if (CoarseBin(key) == coarse) visit(key, times);
        });
        return;
      }
      for (uint32_t i = threadIdx.x; i < shared_.num_candidates; i += kThreads) visit(shared_.candidates[i], 1u);
      if (first_id_ == 0 && threadIdx.x == 0 && within.key != 0xffffffffu && CoarseBin(within.key) == coarse) {
        visit(within.key, within.ties);
      }
    };

    const auto same_target = [&](uint64_t) { return target; };
    const bool has_fine = coarse != kBins - 1;
    uint32_t fine = 0;
    if (has_fine) {
      const uint64_t weights = Histogram([&](auto add) {
        for_candidates([&](uint32_t key, uint32_t times) { add(FineBin(key), weight(key) * times); });
      });
      fine = FindBin(weights, &target, same_target);
    }
    const auto is_left = [&](uint32_t key) { return !has_fine || FineBin(key) == fine; };
    uint64_t range = ~uint64_t{0};  // the smallest key and the complement of the largest
    const auto merge = [](uint64_t a, uint64_t b) {
      return min(a, b) >> 32 << 32 | min(static_cast<uint32_t>(a), static_cast<uint32_t>(b));
    };
    for_candidates([&](uint32_t key, uint32_t) {
      if (is_left(key)) range = merge(range, uint64_t{key} << 32 | static_cast<uint32_t>(~key));
    });
    range = Reduce(range, merge);
    uint32_t found = static_cast<uint32_t>(range >> 32);
    if (found != static_cast<uint32_t>(~range)) {
      found = 0;
      for (int shift = 24; shift >= 0; shift -= 8) {
        const uint64_t weights = Histogram([&](auto add) {
          for_candidates([&](uint32_t key, uint32_t times) {
            if (is_left(key) && uint64_t{key} >> (shift + 8) == uint64_t{found} >> (shift + 8)) {
              add(key >> shift & 0xff, weight(key) * times);
            }
          });
        });
        found |= FindBin(weights, &target, same_target) << shift;
      }
    }
    const uint64_t each = weight(found);
    return {found, each == 0 ? 1 : static_cast<uint32_t>((target + each - 1) / each)};
  }

  // The last token of a prefix: number `ties` in ascending id of those with its key. Threads count runs of ids.
  __device__ uint32_t IdOf(const Prefix& prefix) {
    const uint32_t run = (count_ + kThreads - 1) / kThreads | 1;  // odd: no two lanes on one bank
    const uint32_t begin = min(threadIdx.x * run, count_), end = min(begin + run, count_);
    uint64_t ties = 0, all_ties;
    for (uint32_t i = begin; i < end; ++i) ties += Key(i) == prefix.key;
    uint64_t before = InclusiveScan(ties, &all_ties) - ties;
    uint64_t* slot = &shared_.slots[reductions_++];
    if (threadIdx.x == 0) *slot = all_ties;
    Cluster<kCtas>::Sync();
    const int own_rank = kCtas == 1 ? 0 : blockIdx.x % kCtas;
    for (int rank = 0; rank < own_rank; ++rank) before += Cluster<kCtas>::Read(slot, rank);
    uint64_t id = ~uint64_t{0};
    if (ties > 0 && before < prefix.ties) {
      for (uint32_t i = begin; i < end && before < prefix.ties; ++i) {
        if (Key(i) == prefix.key && ++before == prefix.ties) id = first_id_ + i;
      }
    }
    id = Reduce(id, [](uint64_t a, uint64_t b) { return min(a, b); });
    return id == ~uint64_t{0} ? 0 : static_cast<uint32_t>(id);
  }

  const float* const logits_;
  uint32_t* const keys_;
  const uint32_t first_id_, count_;
  const float temperature_;
  Shared& shared_;
  float largest_ = 0, scaled_largest_ = 0;
  int reductions_ = 0;
  int parity_ = 0;
};

// Takes what a row's mask leaves out of this CTA's run of logits.
__device__ void ApplyMask(float* logits, uint32_t first, uint32_t count, const uint64_t* mask) {
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const uint32_t id = first + i;
    if ((mask[id / 64] >> (id % 64) & 1) == 0) logits[i] = -INFINITY;
  }
}

// With `copies`, logits are copied to shared memory first; else they are read where they are, again and again.
template <int kCtas>
__global__ void __launch_bounds__(kThreads, 1) SampleKernel(SampleParams p, uint32_t cta_tokens, bool copies) {
  extern __shared__ float copied[];
  __shared__ typename RowSampler<kCtas>::Shared shared;
  WaitForInputs();
  LetDependentsStart();
  const uint32_t row = blockIdx.x / kCtas;
  const uint32_t vocab_size = p.vocab_size;
  const uint32_t first = min(blockIdx.x % kCtas * cta_tokens, vocab_size);
  const uint32_t count = min(cta_tokens, vocab_size - first);
  float* const own_logits = p.logits + static_cast<size_t>(row) * vocab_size + first;
  if (row < 64 && (p.masked_rows >> row & 1) != 0) {
    ApplyMask(own_logits, first, count, p.masks + static_cast<size_t>(row) * p.mask_words);
    __syncthreads();
  }
  const float* logits = own_logits;
  if (copies) {
#pragma unroll 16
    for (uint32_t i = threadIdx.x; i < count; i += kThreads) copied[i] = logits[i];
    logits = copied;
    __syncthreads();
  }
  const SampleRow params = p.rows[row];
  RowSampler<kCtas> sampler(logits, copies ? reinterpret_cast<uint32_t*>(copied) : nullptr, first, count,
                            params.temperature, shared);
  uint32_t id = sampler.Largest();
  const double log_sum = p.logprobs != nullptr ? sampler.LogSum() : 0;
  if (params.temperature > 0) id = sampler.Draw(params, vocab_size, id);
  if (first == 0 && threadIdx.x == 0) {
    p.token_ids[row] = id;
    if (p.logprobs != nullptr) {
      p.logprobs[row] = static_cast<float>(p.logits[static_cast<size_t>(row) * vocab_size + id] - log_sum);
    }
  }
  Cluster<kCtas>::Sync();  // nobody leaves while others may read its shared memory
}

}  // namespace

size_t SampleScratchBytes(int, int) {
  return 0;
}

void Sample(Stream stream, const SampleParams& params) {
  if (params.num_rows == 0) return;
  const uint32_t vocab_size = params.vocab_size;
  if (ComputeMajor() < 9) {
    LaunchDependent(SampleKernel<1>, {.grid = dim3(params.num_rows), .threads = kThreads}, stream, params, vocab_size,
                    false);
    return;
  }
  const uint32_t cta_tokens = (vocab_size + kClusterCtas - 1) / kClusterCtas;
  constexpr uint32_t kMostCopied = 180 * 1024 / sizeof(float);
  const bool copies = cta_tokens <= kMostCopied;
  LaunchDependent(SampleKernel<kClusterCtas>,
                  {.grid = dim3(params.num_rows * kClusterCtas),
                   .threads = kThreads,
                   .shared_bytes = copies ? cta_tokens * sizeof(float) : 0,
                   .cluster_ctas = kClusterCtas},
                  stream, params, cta_tokens, copies);
}

}  // namespace winnow::device
