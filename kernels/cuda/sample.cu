#include <algorithm>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/row_math.cuh"
#include "kernels/cuda/sample.h"

// A row is sampled by one cluster, each CTA with a run of the vocabulary in its shared memory. Tokens are ordered by
// descending logit, then ascending id; nothing is sorted. Every question the sampler asks (which token is the k-th,
// where do probabilities reach p, which token does a uniform fall on) is: at which token of that order does a sum of
// weights reach a target. It is answered by histograms of ever finer digits of the logits.

namespace winnow::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBins = kThreads;  // of the widest digit
constexpr int kClusterCtas = 8;
constexpr double kUnit = 0x1p44;  // of fixed-point probabilities, relative to the largest: 2^19 tokens fit 64 bits
constexpr int kMaxReductions = 8;

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

template <int kCtas>
class RowSampler {
 public:
  struct Shared {
    uint64_t bins[2][kBins];
    uint64_t slots[kMaxReductions];
    uint64_t warps[kWarps];
    uint64_t found_before;
    uint32_t found_bin;
  };

  __device__ RowSampler(const float* logits, uint32_t first_id, uint32_t count, float temperature, Shared& shared)
      : logits_(logits), first_id_(first_id), count_(count), temperature_(temperature), shared_(shared) {}

  // The first token of the order.
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

  // `otherwise` where no logit is finite.
  __device__ uint32_t Draw(const SampleRow& row, uint32_t vocab_size, uint32_t otherwise) {
    scaled_largest_ = largest_ / temperature_;
    Prefix kept;
    if (row.top_k > 0 && row.top_k < vocab_size) {
      kept = Reach(kept, row.top_k, [](uint32_t) { return uint64_t{1}; });
    }
    const auto mass = [this](uint32_t key) { return Mass(key); };
    uint64_t total = Total(kept, mass);
    if (total == 0) return otherwise;
    if (row.top_p < 1) {
      const double target = ceil(static_cast<double>(row.top_p) * static_cast<double>(total));
      kept = Reach(kept, min(max(static_cast<uint64_t>(target), uint64_t{1}), total), mass);
    }
    const double least = static_cast<double>(row.min_p) * kUnit;
    const auto likely_mass = [this, least](uint32_t key) {
      const uint64_t m = Mass(key);
      return static_cast<double>(m) >= least ? m : 0;
    };
    if (row.top_p < 1 || row.min_p > 0) total = Total(kept, likely_mass);
    const double uniform = PhiloxUniform(row.seed, row.sample_index, row.token_index);
    const uint64_t target = static_cast<uint64_t>(uniform * static_cast<double>(total)) + 1;
    return IdOf(Reach(kept, min(target, total), likely_mass));
  }

 private:
  __device__ uint32_t Key(uint32_t i) const { return OrderKey(logits_[i] / temperature_); }

  // exp(logit - largest) in units of 2^-44.
  __device__ uint64_t Mass(uint32_t key) const {
    const double distance = static_cast<double>(LogitOfKey(key)) - scaled_largest_;
    return distance > -32 ? static_cast<uint64_t>(__double2ll_rn(exp(distance) * kUnit)) : 0;
  }

  // Digit `level` of a key: first the distance from the largest logit in steps of 1/32, which spreads usual logits
  // well, then the bytes of the key. A token has its digits' order within equal digits before.
  __device__ uint32_t Digit(uint32_t key, int level) const {
    if (level > 0) return key >> (32 - 8 * level) & 0xff;
    const float steps = (scaled_largest_ - LogitOfKey(key)) * 32;
    return steps < kBins - 1 ? static_cast<uint32_t>(steps) : kBins - 1;
  }

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

  // Calls visit(key, weight) for this thread's part of a prefix. The border's ties are one visit, of one thread.
  template <typename Weight, typename Visit>
  __device__ void ForEach(const Prefix& prefix, Weight weight, Visit visit) const {
    for (uint32_t i = threadIdx.x; i < count_; i += kThreads) {
      const uint32_t key = Key(i);
      if (key < prefix.key) visit(key, weight, 1u);
    }
    if (first_id_ == 0 && threadIdx.x == 0 && prefix.key != 0xffffffffu) visit(prefix.key, weight, prefix.ties);
  }

  template <typename Weight>
  __device__ uint64_t Total(const Prefix& prefix, Weight weight) {
    uint64_t sum = 0;
    ForEach(prefix, weight, [&](uint32_t key, Weight w, uint32_t times) { sum += w(key) * times; });
    return Reduce(sum, [](uint64_t a, uint64_t b) { return a + b; });
  }

  // The shortest prefix within `within` whose weights reach `target` > 0, which they do.
  template <typename Weight>
  __device__ Prefix Reach(const Prefix& within, uint64_t target, Weight weight) {
    uint32_t prefix = 0, first_digit = 0;
    for (int level = 0; level <= 4; ++level) {
      uint64_t* bins = shared_.bins[level_parity_];
      level_parity_ ^= 1;
      const int num_bins = level == 0 ? kBins : 256;
      // The last reader of these bins passed the cluster's barrier of the level between.
      if (threadIdx.x < num_bins) bins[threadIdx.x] = 0;
      __syncthreads();
      const uint32_t chosen = level < 2 ? 0 : prefix >> (40 - 8 * level);
      ForEach(within, weight, [&](uint32_t key, Weight w, uint32_t times) {
        const uint32_t digit = Digit(key, level);
        if (level == 0) {
          // What does not fall into the other bins is in the last one, usually the fullest.
          if (digit == kBins - 1) return;
        } else if (Digit(key, 0) != first_digit || (level > 1 && key >> (40 - 8 * level) != chosen)) {
          return;
        }
        const uint64_t m = w(key) * times;
        if (m != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&bins[digit]), m);
      });
      Cluster<kCtas>::Sync();
      const uint32_t bin = FindBin(bins, num_bins, &target);
      if (level == 0) {
        first_digit = bin;
      } else {
        prefix |= bin << (32 - 8 * level);
      }
    }
    const uint64_t each = weight(prefix);
    return {prefix, each == 0 ? 1 : static_cast<uint32_t>((target + each - 1) / each)};
  }

  // The bin in which the sum over all CTAs reaches *target, less what lies before it; the last where none does.
  __device__ uint32_t FindBin(const uint64_t* bins, int num_bins, uint64_t* target) {
    uint64_t own = 0;
    if (threadIdx.x < num_bins) {
#pragma unroll
      for (int rank = 0; rank < kCtas; ++rank) own += Cluster<kCtas>::Read(&bins[threadIdx.x], rank);
    }
    uint64_t sum = InclusiveScan(own);
    const bool is_last = threadIdx.x == num_bins - 1;
    if (threadIdx.x < num_bins && sum - own < *target && (sum >= *target || is_last)) {
      shared_.found_bin = threadIdx.x;
      shared_.found_before = sum - own;
    }
    __syncthreads();
    *target -= shared_.found_before;
    return shared_.found_bin;
  }

  __device__ uint64_t InclusiveScan(uint64_t value) {
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
    const uint64_t before = __shfl_sync(0xffffffffu, warps, warp == 0 ? 0 : warp - 1);
    return warp == 0 ? value : value + before;
  }

  // The last token of a prefix: number `ties` in ascending id of those with its key. Threads count runs of ids.
  __device__ uint32_t IdOf(const Prefix& prefix) {
    const uint32_t run = (count_ + kThreads - 1) / kThreads;
    const uint32_t begin = min(threadIdx.x * run, count_), end = min(begin + run, count_);
    uint64_t ties = 0;
    for (uint32_t i = begin; i < end; ++i) ties += Key(i) == prefix.key;
    const uint64_t up_to = InclusiveScan(ties);
    uint64_t* slot = &shared_.slots[reductions_++];
    if (threadIdx.x == kThreads - 1) *slot = up_to;
    Cluster<kCtas>::Sync();
    const int own_rank = kCtas == 1 ? 0 : blockIdx.x % kCtas;
    uint64_t before = up_to - ties;
    for (int rank = 0; rank < own_rank; ++rank) before += Cluster<kCtas>::Read(slot, rank);
    uint64_t id = ~uint64_t{0};
    for (uint32_t i = begin; i < end && before < prefix.ties; ++i) {
      if (Key(i) == prefix.key && ++before == prefix.ties) id = first_id_ + i;
    }
    id = Reduce(id, [](uint64_t a, uint64_t b) { return min(a, b); });
    return id == ~uint64_t{0} ? 0 : static_cast<uint32_t>(id);
  }

  const float* const logits_;
  const uint32_t first_id_, count_;
  const float temperature_;
  Shared& shared_;
  float largest_ = 0, scaled_largest_ = 0;
  int reductions_ = 0;
  int level_parity_ = 0;
};

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
  const float* logits = p.logits + static_cast<size_t>(row) * vocab_size + first;
  if (copies) {
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < count; i += kThreads) copied[i] = logits[i];
    logits = copied;
    __syncthreads();
  }
  const SampleRow params = p.rows[row];
  RowSampler<kCtas> sampler(logits, first, count, params.temperature, shared);
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
  constexpr uint32_t kMostCopied = 200 * 1024 / sizeof(float);
  const bool copies = cta_tokens <= kMostCopied;
  LaunchDependent(SampleKernel<kClusterCtas>,
                  {.grid = dim3(params.num_rows * kClusterCtas),
                   .threads = kThreads,
                   .shared_bytes = copies ? cta_tokens * sizeof(float) : 0,
                   .cluster_ctas = kClusterCtas},
                  stream, params, cta_tokens, copies);
}

}  // namespace winnow::cuda
