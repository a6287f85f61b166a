#include "common/base/check.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/prefill/prefill_mask.cuh"
#include "kernels/cuda/prefill/prefill_mma.h"

// FlashAttention-2 (arXiv:2307.08691): a CTA of four warps has 64 queries of one head, 16 per warp, and walks over
// tiles of 64 keys. K|V rows are copied as they lie, two tiles deep, into rows padded against bank conflicts.

namespace winnow::device {
namespace {

constexpr int kWarps = 4;
constexpr int kQueries = 16 * kWarps;
constexpr int kTile = 64;
constexpr float kLog2E = 1.44269504088896341f;

template <int kHeadDim>
struct Layout {
  static constexpr int kStages = kHeadDim <= 128 ? 2 : 1;  // 163 KB of an A100's shared memory
  static constexpr int kQPitch = kHeadDim + 8;             // elements
  static constexpr int kKvPitch = 2 * kHeadDim + 8;
  static constexpr size_t kBytes = 2 * (static_cast<size_t>(kQueries) * kQPitch + kStages * kTile * kKvPitch);
};

__device__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes, or zeros.
__device__ void CopyAsync16(void* to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(to)), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");
}
__device__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ void LoadMatrices(const void* row, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(SharedAddress(row))
               : "memory");
}
__device__ void LoadTransposed(const void* row, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(SharedAddress(row))
               : "memory");
}
__device__ void MultiplyAdd(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rows [first_row, first_row + kRows) of kWidth elements; those from num_rows on become zeros.
template <int kRows, int kWidth, int kPitch>
__device__ void CopyRows(__nv_bfloat16* to, const __nv_bfloat16* from, int64_t stride, int first_row, int num_rows) {
  constexpr int kPieces = kWidth / 8;
  for (int i = threadIdx.x; i < kRows * kPieces; i += kWarps * kWarp) {
    const int row = i / kPieces, piece = i % kPieces;
    const bool is_there = first_row + row < num_rows;
    CopyAsync16(to + row * kPitch + piece * 8, from + (is_there ? first_row + row : 0) * stride + piece * 8, is_there);
  }
}

// kScaled: of rows of int8, as in prefill_wgmma.cuh.
template <int kHeadDim, bool kScaled>
__global__ void __launch_bounds__(kWarps* kWarp) PrefillMmaKernel(PrefillAttentionParams p) {
  using L = Layout<kHeadDim>;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* q_shared = reinterpret_cast<__nv_bfloat16*>(shared);
  __nv_bfloat16* kv_shared = q_shared + kQueries * L::kQPitch;
  WaitForInputs();
  LetDependentsStart();

  const int head = blockIdx.x % p.num_query_heads;
  const int kv_head = head / (p.num_query_heads / p.num_kv_heads);
  // The last queries see the most keys and go first, so that the GPU's ends meet.
  const int num_blocks = gridDim.x / p.num_query_heads;
  const int first_query = (num_blocks - 1 - static_cast<int>(blockIdx.x) / p.num_query_heads) * kQueries;
  const PrefillMask<kTile> mask(p, kv_head, first_query, kQueries);
  const int num_keys = static_cast<int>(p.first_position) + p.num_queries;

  const int64_t q_stride = static_cast<int64_t>(p.num_query_heads) * kHeadDim;
  CopyRows<kQueries, kHeadDim, L::kQPitch>(q_shared, static_cast<const __nv_bfloat16*>(p.q) + head * kHeadDim, q_stride,
                                           first_query, p.num_queries);
  const __nv_bfloat16* kv =
      static_cast<const __nv_bfloat16*>(p.kv) + static_cast<size_t>(kv_head) * p.kv_head_stride * 2 * kHeadDim;
  const auto copy_tile = [&](int tile, int stage) {
    if (tile < mask.EndTile()) {
      CopyRows<kTile, 2 * kHeadDim, L::kKvPitch>(kv_shared + stage * kTile * L::kKvPitch, kv, 2 * kHeadDim,
                                                 tile * kTile, num_keys);
    }
    CommitCopies();
  };

  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int position = mask.first + warp * 16 + lane / 4;  // and the row 8 below
  const float scale = p.scale * kLog2E;
  float out[kHeadDim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  // This thread's columns of a tile are 8 n + lane % 4 * 2 and the next: each is multiplied with its own scale.
  const auto scale_columns = [&](const float* scales, int tile, float(&values)[kTile / 8][4]) {
    const float* const of_tile = scales + kv_head * p.kv_head_stride + tile * kTile;
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
      const float2 own = __ldg(reinterpret_cast<const float2*>(of_tile + 8 * n) + lane % 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[n][i] *= i % 2 == 0 ? own.x : own.y;
    }
  };
  int tile = mask.FirstTile();
  copy_tile(tile, 0);
  for (int stage = 0; tile < mask.EndTile(); stage = (stage + 1) % L::kStages) {
    const int next = mask.NextTile(tile);
    if (L::kStages == 2) copy_tile(next, stage ^ 1);
    WaitForCopies<L::kStages - 1>();
    __syncthreads();
    const __nv_bfloat16* keys = kv_shared + stage * kTile * L::kKvPitch;

    float s[kTile / 8][4] = {};
#pragma unroll
    for (int d = 0; d < kHeadDim; d += 16) {
      uint32_t a[4];
      LoadMatrices(q_shared + (warp * 16 + lane % 16) * L::kQPitch + d + lane / 16 * 8, a);
#pragma unroll
      for (int n = 0; n < kTile; n += 16) {
        uint32_t b[4];
        LoadMatrices(keys + (n + lane % 8 + lane / 16 * 8) * L::kKvPitch + d + lane / 8 % 2 * 8, b);
        MultiplyAdd(a, b[0], b[1], s[n / 8]);
        MultiplyAdd(a, b[2], b[3], s[n / 8 + 1]);
      }
    }
    if constexpr (kScaled) scale_columns(p.key_scales, tile, s);
    if (mask.IsPartial(tile, mask.first + warp * 16)) {
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = tile * kTile + n * 8 + lane % 4 * 2 + i % 2;
          if (!mask.Sees(position + i / 2 * 8, key)) s[n][i] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = largest[r];
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float seen = top == -INFINITY ? 0 : top;
      const float keep = Exp2((largest[r] - seen) * scale);  // exactly 1 where the largest stays
      const float base = seen * scale;
      largest[r] = top;
      sum[r] *= keep;
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          s[n][i] = Exp2(s[n][i] * scale - base);
          sum[r] += s[n][i];
        }
      }
#pragma unroll
      for (int d = 0; d < kHeadDim / 8; ++d) {
        out[d][2 * r] *= keep;
        out[d][2 * r + 1] *= keep;
      }
    }
    if constexpr (kScaled) scale_columns(p.value_scales, tile, s);
#pragma unroll
    for (int n = 0; n < kTile; n += 16) {
      const float(&low)[4] = s[n / 8];
      const float(&high)[4] = s[n / 8 + 1];
      const uint32_t a[4] = {PackBf16(low[0], low[1]), PackBf16(low[2], low[3]), PackBf16(high[0], high[1]),
                             PackBf16(high[2], high[3])};
#pragma unroll
      for (int d = 0; d < kHeadDim; d += 16) {
        uint32_t b[4];
        LoadTransposed(keys + (n + lane % 16) * L::kKvPitch + kHeadDim + d + lane / 16 * 8, b);
        MultiplyAdd(a, b[0], b[1], out[d / 8]);
        MultiplyAdd(a, b[2], b[3], out[d / 8 + 1]);
      }
    }
    __syncthreads();
    if (L::kStages == 1) copy_tile(next, 0);
    tile = next;
  }

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
    const int query = first_query + warp * 16 + lane / 4 + r * 8;
    if (query >= p.num_queries) continue;
    if (p.sinks != nullptr) sum[r] += Exp2(p.sinks[head] * kLog2E - largest[r] * scale);
    const float inverse = sum[r] > 0 ? 1 / sum[r] : 0;
    auto* to = static_cast<__nv_bfloat16*>(p.out) + query * q_stride + head * kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int d = 0; d < kHeadDim / 8; ++d) {
      *reinterpret_cast<uint32_t*>(to + d * 8) = PackBf16(out[d][2 * r] * inverse, out[d][2 * r + 1] * inverse);
    }
  }
}

template <int kHeadDim>
void Launch(Stream stream, const PrefillAttentionParams& params) {
  const int num_blocks = (params.num_queries + kQueries - 1) / kQueries;
  const auto kernel =
      params.key_scales != nullptr ? PrefillMmaKernel<kHeadDim, true> : PrefillMmaKernel<kHeadDim, false>;
  LaunchDependent(kernel,
                  {.grid = dim3(num_blocks * params.num_query_heads),
                   .threads = kWarps * kWarp,
                   .shared_bytes = Layout<kHeadDim>::kBytes},
                  stream, params);
}

}  // namespace

void PrefillAttentionMma(Stream stream, const PrefillAttentionParams& params) {
  switch (params.head_dim) {
    case 16:
      return Launch<16>(stream, params);
    case 32:
      return Launch<32>(stream, params);
    case 64:
      return Launch<64>(stream, params);
    case 96:
      return Launch<96>(stream, params);
    case 128:
      return Launch<128>(stream, params);
    case 256:
      return Launch<256>(stream, params);
  }
  WINNOW_CHECK(false);
}

}  // namespace winnow::device
