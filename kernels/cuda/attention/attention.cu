#include <algorithm>

#include "kernels/cuda/attention/attention_launch.cuh"
#include "kernels/cuda/attention/latent_decode.h"
#include "kernels/cuda/attention/quantize_rows.cuh"
#include "kernels/device/params/attention.h"

namespace winnow::device {

extern template void LaunchDecode<Dtype::kBf16>(cudaStream_t, const DecodeLaunch&);
extern template void LaunchDecode<Dtype::kF8>(cudaStream_t, const DecodeLaunch&);
extern template void LaunchDecode<Dtype::kI8>(cudaStream_t, const DecodeLaunch&);
extern template void LaunchDecode<Dtype::kI4>(cudaStream_t, const DecodeLaunch&);

namespace {

// Counters come first and their room is the same for all parameters, so that partial results never lie where a later
// launch has its counters.
constexpr size_t kUnitCounters = 2, kLaunchWords = kUnitCounters + 1;
constexpr size_t kCounterBytes = (64 * 256 + 64) * sizeof(uint32_t);  // of rows and kv heads, and of the launch

int NumLists(const DecodeAttentionParams& params) {
  return params.num_rows * params.num_kv_heads;
}

struct Plan {
  int level;
  uint32_t units;  // of a list, at most
  bool clustered;
};

// Units of the longest list; no shorter one has more.
uint32_t MaxUnits(const DecodeAttentionParams& params, int level) {
  const uint32_t splits = std::min(CeilDiv(params.max_count, kMinSplitRows), kMaxSplits);
  return std::max<uint32_t>(1, CeilDiv(splits, SplitsOfUnit(level)));
}

// Clusters of more than 8 blocks are from compute capability 9.0 on.
bool HasLargeClusters() {
  return DeviceAttribute(cudaDevAttrComputeCapabilityMajor) >= 9;
}

// Few lists: a cluster each, which merges without a way through memory; the longer they are, the less that is. Else as
// few units as fill the device, since each costs a start and a partial result.
Plan MakePlan(const DecodeAttentionParams& params) {
  constexpr uint32_t kShortList = 4096, kLongList = 40960;
  // A block to most multiprocessors brings whole lists faster than two to each bring quarters.
  constexpr uint32_t kEnoughUnits = 120;
  constexpr int kClustered = 3;
  const uint32_t num_lists = NumLists(params);
  const uint32_t few_lists = params.max_count <= kShortList ? 16 : params.max_count <= kLongList ? 8 : 0;
  const bool cluster = params.unit_level < 0 ? num_lists <= few_lists : params.unit_level == kClustered;
  const bool fits = params.head_dim >= 64 && params.head_dim <= 128;
  if (cluster && MaxUnits(params, kSplit) > 1 && fits && HasLargeClusters()) return {kSplit, kClusterUnits, true};
  // A block takes so few rows in less time than two take to merge their halves.
  const int least = params.max_count <= 2 * kMinSplitRows ? kQuarter : kSplit;
  int level = params.unit_level >= 0 ? std::min<int>(params.unit_level, kWholeList) : kWholeList;
  if (params.unit_level < 0) {
    while (level > least && num_lists * MaxUnits(params, level) < kEnoughUnits) --level;
  }
  return {level, MaxUnits(params, level), false};
}

size_t PartialBytes(int head_dim) {
  return (static_cast<size_t>(head_dim) * kMaxGroup + 2 * kMaxGroup) * sizeof(float);
}

size_t ScratchBytes(const DecodeAttentionParams& params) {
  if (params.row.value_is_key) return LatentScratchBytes(params);
  const Plan plan = MakePlan(params);
  const size_t partials = plan.units == 1 || plan.clustered ? 0 : static_cast<size_t>(NumLists(params)) * plan.units;
  return kCounterBytes + partials * PartialBytes(params.head_dim);
}

void DecodeAttention(Stream stream, const DecodeAttentionParams& params) {
  if (params.row.value_is_key) return LatentDecodeAttention(stream, params);
  const bool is_small = params.kv_dtype == Dtype::kBf16 && (params.head_dim == 16 || params.head_dim == 32);
  WINNOW_CHECK(is_small || params.head_dim == 64 || params.head_dim == 96 || params.head_dim == 128 ||
               params.head_dim == 256);
  WINNOW_CHECK(params.num_rows >= 1 && params.num_rows <= 64 && params.num_kv_heads <= 256);
  WINNOW_CHECK(params.num_query_heads % params.num_kv_heads == 0 &&
               params.num_query_heads / params.num_kv_heads <= kMaxGroup);
  DecodeLaunch launch;
  launch.params = params;
  const Plan plan = MakePlan(params);
  launch.level = plan.level;
  launch.num_lists = NumLists(params);
  launch.max_units = plan.units;
  launch.clustered = plan.clustered;
  launch.unit_counters = static_cast<uint32_t*>(params.scratch);
  launch.wait_ended = launch.unit_counters + kUnitCounters;
  launch.counters = launch.unit_counters + kLaunchWords;
  launch.partials = reinterpret_cast<float*>(static_cast<char*>(params.scratch) + kCounterBytes);
  switch (params.kv_dtype) {
    case Dtype::kBf16:
      return LaunchDecode<Dtype::kBf16>(stream, launch);
    case Dtype::kF8:
      return LaunchDecode<Dtype::kF8>(stream, launch);
    case Dtype::kI8:
      return LaunchDecode<Dtype::kI8>(stream, launch);
    case Dtype::kI4:
      return LaunchDecode<Dtype::kI4>(stream, launch);
    default:
      WINNOW_CHECK(false);
  }
}

}  // namespace

const AttentionKernels kAttentionKernels = {ScratchBytes, DecodeAttention, QuantizeRows};

}  // namespace winnow::device
