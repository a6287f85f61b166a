#include <algorithm>

#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/int8_codes.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/step/rope_append.h"

namespace winnow::device {
namespace {

constexpr int kWarps = 4;

// Where a lane's elements of a head are read: kPairs that follow each other, and their partners. They are written at
// lane * kPairs and half a head on, which is where they are read of heads that turn whole.
struct PartPlace {
  int low, high;
};

__device__ PartPlace PlaceOf(int at, int half, int rotary_half) {
  if (at < rotary_half) return {at, at + rotary_half};
  return {at + rotary_half, at + half};
}

// Elements of one head that a lane holds.
template <int kPairs>
struct HeadPart {
  float low[kPairs], high[kPairs];
};

template <int kPairs>
__device__ HeadPart<kPairs> LoadPart(const float* head, PartPlace at) {
  static_assert(kPairs == 2 || kPairs == 4);
  using Vector = std::conditional_t<kPairs == 2, float2, float4>;
  HeadPart<kPairs> part;
  reinterpret_cast<Vector&>(part.low) = *reinterpret_cast<const Vector*>(head + at.low);
  reinterpret_cast<Vector&>(part.high) = *reinterpret_cast<const Vector*>(head + at.high);
  return part;
}

template <int kPairs>
__device__ void StorePart(const HeadPart<kPairs>& part, float* head, int at, int half) {
  using Vector = std::conditional_t<kPairs == 2, float2, float4>;
  *reinterpret_cast<Vector*>(head + at) = reinterpret_cast<const Vector&>(part.low);
  *reinterpret_cast<Vector*>(head + half + at) = reinterpret_cast<const Vector&>(part.high);
}

template <int kPairs>
__device__ void StorePart(const HeadPart<kPairs>& part, __nv_bfloat16* head, int at, int half) {
#pragma unroll
  for (int j = 0; j < kPairs; j += 2) {
    *reinterpret_cast<uint32_t*>(head + at + j) = PackBf16(part.low[j], part.low[j + 1]);
    *reinterpret_cast<uint32_t*>(head + half + at + j) = PackBf16(part.high[j], part.high[j + 1]);
  }
}

template <int kPairs>
__device__ void Add(const HeadPart<kPairs>& b, HeadPart<kPairs>* a) {
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    a->low[j] += b.low[j];
    a->high[j] += b.high[j];
  }
}

template <int kPairs>
__device__ void Normalise(const HeadPart<kPairs>& weight, bool active, float epsilon, int head_dim,
                          HeadPart<kPairs>* part) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) sum += part->low[j] * part->low[j] + part->high[j] * part->high[j];
  sum = WarpSum(active ? sum : 0.0f);
  const float inverse = 1 / sqrtf(sum / static_cast<float>(head_dim) + epsilon);
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    part->low[j] = part->low[j] * inverse * weight.low[j];
    part->high[j] = part->high[j] * inverse * weight.high[j];
  }
}

// What is written of a kv head's key and value.
template <int kPairs, Dtype kDtype>
struct HeadRow;

template <int kPairs>
struct HeadRow<kPairs, Dtype::kBf16> {
  const HeadPart<kPairs>&key, &value;

  __device__ HeadRow(const HeadPart<kPairs>& k, const HeadPart<kPairs>& v, bool) : key(k), value(v) {}
  __device__ void Store(void* row, int at, int half) const {
    StorePart(key, static_cast<__nv_bfloat16*>(row), at, half);
    StorePart(value, static_cast<__nv_bfloat16*>(row) + 2 * half, at, half);
  }
  __device__ void StoreScales(float*) const {}
};

template <int kPairs>
struct HeadRow<kPairs, Dtype::kI8> {
  using Word = std::conditional_t<kPairs == 2, uint16_t, uint32_t>;
  Int8Codes<kPairs> key_low, key_high, value_low, value_high;
  float2 scales;

  // All lanes of the warp; those without elements pass active = false.
  __device__ HeadRow(const HeadPart<kPairs>& k, const HeadPart<kPairs>& v, bool active) {
    const Int8Step key(WarpMaxBits(active ? max(MaxBits(k.low), MaxBits(k.high)) : 0));
    const Int8Step value(WarpMaxBits(active ? max(MaxBits(v.low), MaxBits(v.high)) : 0));
    key_low = key.Quantize(k.low), key_high = key.Quantize(k.high);
    value_low = value.Quantize(v.low), value_high = value.Quantize(v.high);
    scales = make_float2(key.scale, value.scale);
  }
  __device__ void Store(void* row, int at, int half) const {
    auto* const codes = static_cast<int8_t*>(row) + at;
    *reinterpret_cast<Word*>(codes) = key_low.template As<Word>();
    *reinterpret_cast<Word*>(codes + half) = key_high.template As<Word>();
    *reinterpret_cast<Word*>(codes + 2 * half) = value_low.template As<Word>();
    *reinterpret_cast<Word*>(codes + 3 * half) = value_high.template As<Word>();
  }
  __device__ void StoreScales(float* to) const { *reinterpret_cast<float2*>(to) = scales; }
};

// What a warp reads for one head; of kv heads, V and the row's destination too.
template <int kPairs>
struct HeadInput {
  HeadPart<kPairs> part, v;
  std::byte* destination = nullptr;

  // V is read at `v_at`.
  __device__ void Load(const RopeAppendParams& p, size_t row, int head, PartPlace at, PartPlace v_at) {
    const float* projected = p.qkv + row * p.qkv_stride;
    part = LoadPart<kPairs>(projected + head * p.head_dim, at);
    if (p.qkv_bias != nullptr) Add(LoadPart<kPairs>(p.qkv_bias + head * p.head_dim, at), &part);
    if (head < p.num_query_heads) return;
    const int v_head = head + p.num_kv_heads;
    v = LoadPart<kPairs>(projected + v_head * p.head_dim, v_at);
    if (p.qkv_bias != nullptr) Add(LoadPart<kPairs>(p.qkv_bias + v_head * p.head_dim, v_at), &v);
    if (p.kv_destinations != nullptr) {
      destination = static_cast<std::byte*>(p.kv_destinations[row * p.num_kv_heads + head - p.num_query_heads]);
    }
  }
};

// Where the scales of the row whose codes begin at `codes` lie.
__device__ float* ScalesOf(const RopeAppendParams& p, std::byte* codes) {
  const size_t code_bytes = 2 * static_cast<size_t>(p.head_dim);
  if (p.slot_scales == nullptr) return reinterpret_cast<float*>(codes + code_bytes);
  return p.slot_scales + static_cast<size_t>(codes - static_cast<const std::byte*>(p.slot_pool)) / code_bytes * 2;
}

// One warp per head: blockIdx.x is the row, and the heads (query heads, then kv heads) go round the warps of the
// row's CTAs. The angles of a row are computed once per warp, while its first head is on its way, and
// the next head is loaded before one is worked on.
template <int kPairs, Dtype kDtype>
__global__ void __launch_bounds__(kWarps* kWarp) RopeAppendKernel(RopeAppendParams p) {
  const int half = p.head_dim / 2;
  const int lane = threadIdx.x % kWarp;
  const bool active = lane * kPairs < half;
  const int at = active ? lane * kPairs : 0;
  const PartPlace from = PlaceOf(at, half, p.rotary_dim / 2), v_from = {at, at + half};
  const int num_rotated = p.num_query_heads + p.num_kv_heads;
  int head = blockIdx.y * kWarps + threadIdx.x / kWarp;
  if (head >= num_rotated) return;
  float inv_freq[kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) inv_freq[j] = p.rope_inv_freq[at + j];
  HeadPart<kPairs> q_weight, k_weight;
  if (p.q_norm_weight != nullptr) q_weight = LoadPart<kPairs>(p.q_norm_weight, from);
  if (p.k_norm_weight != nullptr) k_weight = LoadPart<kPairs>(p.k_norm_weight, from);
  const size_t row = blockIdx.x;
  const int64_t region = p.copy_regions == nullptr ? 0 : reinterpret_cast<int64_t>(p.copy_regions[row]);
  const bool copies = p.copy_regions == nullptr || region != 0;
  LetDependentsStart();
  WaitForInputs();

  const float position = static_cast<float>(p.positions[row]);
  HeadInput<kPairs> input;
  input.Load(p, row, head, from, v_from);
  float sine[kPairs], cosine[kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    sincosf(__fmul_rn(position, inv_freq[j]), &sine[j], &cosine[j]);
    sine[j] *= p.rope_attention_factor;
    cosine[j] *= p.rope_attention_factor;
  }
  while (true) {
    const int next_head = head + gridDim.y * kWarps;
    HeadInput<kPairs> next;
    if (next_head < num_rotated) next.Load(p, row, next_head, from, v_from);
    const bool is_query = head < p.num_query_heads;
    HeadPart<kPairs>& part = input.part;
    if ((is_query ? p.q_norm_weight : p.k_norm_weight) != nullptr) {
      Normalise(is_query ? q_weight : k_weight, active, p.norm_epsilon, p.head_dim, &part);
    }
    HeadPart<kPairs> rotated;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      rotated.low[j] = part.low[j] * cosine[j] - part.high[j] * sine[j];
      rotated.high[j] = part.high[j] * cosine[j] + part.low[j] * sine[j];
    }
    if (!is_query) {
      const HeadRow<kPairs, kDtype> kv(rotated, input.v, active);
      const auto store = [&](std::byte* to, float* scales) {
        if (active) kv.Store(to, at, half);
        if (lane == 0) kv.StoreScales(scales);
      };
      if (input.destination != nullptr) store(input.destination, ScalesOf(p, input.destination));
      if (p.kv_copy != nullptr && copies) {
        const size_t row_bytes = RowLayout().bytes(p.head_dim, kDtype);
        auto* const copy = reinterpret_cast<std::byte*>(reinterpret_cast<int64_t>(p.kv_copy) + region);
        std::byte* const out = copy + row * p.kv_copy_stride + (head - p.num_query_heads) * row_bytes;
        store(out, reinterpret_cast<float*>(out + 2 * p.head_dim));
      }
    } else if (active) {
      const size_t offset = (row * p.num_query_heads + head) * p.head_dim;
      if (p.q_pre_rope != nullptr && copies) {
        auto* const pre_rope = reinterpret_cast<float*>(reinterpret_cast<int64_t>(p.q_pre_rope) + region);
        StorePart(part, pre_rope + row * p.q_pre_rope_stride + head * p.head_dim, at, half);
      }
      if (p.q != nullptr) StorePart(rotated, p.q + offset, at, half);
      if (p.q_bf16 != nullptr) StorePart(rotated, static_cast<__nv_bfloat16*>(p.q_bf16) + offset, at, half);
    }
    if (next_head >= num_rotated) return;
    head = next_head;
    input = next;
  }
}

}  // namespace

void RopeAppend(Stream stream, const RopeAppendParams& params) {
  WINNOW_CHECK(params.head_dim % 4 == 0 && params.head_dim <= 256);
  WINNOW_CHECK(params.head_dim <= 128 || params.head_dim % 8 == 0);
  WINNOW_CHECK(params.qkv_stride % 4 == 0);
  if (params.num_rows == 0) return;
  const int head_ctas = (params.num_query_heads + params.num_kv_heads + kWarps - 1) / kWarps;
  // Few rows: every head has its warp. Many rows fill the GPU by themselves, and share their angles.
  constexpr int kEnoughCtas = 8192;
  const int row_ctas = std::clamp(kEnoughCtas / params.num_rows, 1, head_ctas);
  const LaunchShape shape = {.grid = dim3(params.num_rows, row_ctas), .threads = kWarps * kWarp};
  RopeAppendParams strided = params;
  if (strided.rotary_dim == 0) strided.rotary_dim = params.head_dim;
  WINNOW_CHECK(strided.rotary_dim % (params.head_dim <= 128 ? 4 : 8) == 0 && strided.rotary_dim <= params.head_dim);
  if (strided.q_pre_rope_stride == 0) strided.q_pre_rope_stride = params.num_query_heads * params.head_dim;
  if (strided.kv_copy_stride == 0) {
    const size_t row_bytes = RowLayout().bytes(params.head_dim, params.kv_dtype);
    strided.kv_copy_stride = static_cast<int64_t>(params.num_kv_heads * row_bytes);
  }
  const bool is_int8 = params.kv_dtype == Dtype::kI8;
  WINNOW_CHECK(is_int8 || params.kv_dtype == Dtype::kBf16);
  WINNOW_CHECK(strided.q_pre_rope_stride % 4 == 0 && strided.kv_copy_stride % (is_int8 ? 8 : 4) == 0);
  const auto narrow = is_int8 ? RopeAppendKernel<2, Dtype::kI8> : RopeAppendKernel<2, Dtype::kBf16>;
  const auto wide = is_int8 ? RopeAppendKernel<4, Dtype::kI8> : RopeAppendKernel<4, Dtype::kBf16>;
  LaunchDependent(params.head_dim <= 128 ? narrow : wide, shape, stream, strided);
}

}  // namespace winnow::device
