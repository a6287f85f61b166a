#include <algorithm>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.cuh"
#include "kernels/cuda/quantize_rows.cuh"

namespace winnow::cuda {

extern template void LaunchDecode<Dtype::kBf16>(cudaStream_t, const DecodeLaunch&, int);
extern template void LaunchDecode<Dtype::kF8>(cudaStream_t, const DecodeLaunch&, int);
extern template void LaunchDecode<Dtype::kI8>(cudaStream_t, const DecodeLaunch&, int);
extern template void LaunchDecode<Dtype::kI4>(cudaStream_t, const DecodeLaunch&, int);

namespace {

// Counters come first and their room is the same for all parameters, so that partial results never lie where a later
// launch has its counters.
constexpr size_t kCounterBytes = 64 * 256 * sizeof(uint32_t);  // rows, kv heads

int NumLists(const DecodeAttentionParams& params) {
  return params.num_rows * params.num_kv_heads;
}

// Units of the greatest list. Shorter ones may have more of them: the number of splits is not monotonic.
uint32_t MaxUnits(const DecodeAttentionParams& params, int level) {
  const ListCut cut(params.max_count);
  const uint32_t splits = cut.chunks <= kMaxSplits ? cut.chunks : kMaxSplits;
  return std::max<uint32_t>(1, CeilDiv(splits, SplitsOfUnit(level)));
}

// As few units as fill the device twice over, since each costs a start and a partial result.
int Level(const DecodeAttentionParams& params) {
  if (params.unit_level >= 0) return params.unit_level;
  constexpr uint32_t kEnoughBlocks = 250;
  int level = kWholeList;
  while (level > kSplit && NumLists(params) * MaxUnits(params, level) < kEnoughBlocks) --level;
  return level;
}

size_t PartialBytes(int head_dim) {
  return (static_cast<size_t>(head_dim) * kMaxGroup + 2 * kMaxGroup) * sizeof(float);
}

size_t ScratchBytes(const DecodeAttentionParams& params) {
  const uint32_t units = MaxUnits(params, Level(params));
  return kCounterBytes + (units == 1 ? 0 : NumLists(params) * units * PartialBytes(params.head_dim));
}

void DecodeAttention(Stream stream, const DecodeAttentionParams& params) {
  WINNOW_CHECK(params.head_dim == 64 || params.head_dim == 96 || params.head_dim == 128 || params.head_dim == 256);
  WINNOW_CHECK(params.num_rows >= 1 && params.num_rows <= 64 && params.num_kv_heads <= 256);
  WINNOW_CHECK(params.num_query_heads % params.num_kv_heads == 0 &&
               params.num_query_heads / params.num_kv_heads <= kMaxGroup);
  DecodeLaunch launch;
  launch.params = params;
  launch.level = Level(params);
  launch.max_units = MaxUnits(params, launch.level);
  launch.counters = static_cast<uint32_t*>(params.scratch);
  launch.partials = reinterpret_cast<float*>(static_cast<char*>(params.scratch) + kCounterBytes);
  switch (params.kv_dtype) {
    case Dtype::kBf16:
      return LaunchDecode<Dtype::kBf16>(stream, launch, NumLists(params));
    case Dtype::kF8:
      return LaunchDecode<Dtype::kF8>(stream, launch, NumLists(params));
    case Dtype::kI8:
      return LaunchDecode<Dtype::kI8>(stream, launch, NumLists(params));
    case Dtype::kI4:
      return LaunchDecode<Dtype::kI4>(stream, launch, NumLists(params));
    default:
      WINNOW_CHECK(false);
  }
}

}  // namespace

const AttentionKernels kAttentionKernels = {ScratchBytes, DecodeAttention, QuantizeRows};

}  // namespace winnow::cuda
