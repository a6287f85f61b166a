#include <algorithm>

#include "common/base/check.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/philox.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/step/activation.cuh"
#include "kernels/cuda/step/rope_append.h"
#include "kernels/cuda/step/sample.h"
#include "kernels/device/params/elementwise.h"

namespace winnow::device {
namespace {

constexpr unsigned DivideUp(size_t a, size_t b) {
  return static_cast<unsigned>((a + b - 1) / b);
}

// A thread per eight elements of a row; rows lie along x, as only that side of a grid may be long.
constexpr int kThreads = 128;
LaunchShape EightsShape(int num_rows, int width) {
  return {.grid = dim3(num_rows, DivideUp(width / 8, kThreads)), .threads = kThreads};
}

__global__ void __launch_bounds__(kThreads) EmbedKernel(EmbedParams p) {
  LetDependentsStart();
  WaitForInputs();
  const int column = (blockIdx.y * kThreads + threadIdx.x) * 8;
  if (column >= p.hidden_size) return;
  const size_t id = p.token_ids[blockIdx.x];
  const Float8 values =
      LoadFloat8(static_cast<const __nv_bfloat16*>(p.embedding) + id * static_cast<size_t>(p.hidden_size) + column);
  float4* out = reinterpret_cast<float4*>(p.x + static_cast<size_t>(blockIdx.x) * p.hidden_size + column);
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = p.scale * values.at[i];
  out[0] = make_float4(x[0], x[1], x[2], x[3]);
  out[1] = make_float4(x[4], x[5], x[6], x[7]);
}

void Embed(Stream stream, const EmbedParams& params) {
  WINNOW_CHECK(params.hidden_size % 8 == 0);
  if (params.num_rows == 0) return;
  LaunchDependent(EmbedKernel, EightsShape(params.num_rows, params.hidden_size), stream, params);
}

// The sum over a block of whole warps, the same bits in every thread. Called once in a kernel.
__device__ float BlockSum(float value) {
  __shared__ float warp_sums[kWarp];
  value = WarpSum(value);
  if (threadIdx.x % kWarp == 0) warp_sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  return WarpSum(lane < blockDim.x / kWarp ? warp_sums[lane] : 0.0f);
}

// One CTA per row, which stays in its registers: kVectors float4 per thread. The weights are on their way before the
// kernel waits for its input.
constexpr int kNormThreads = 1024;
template <int kVectors>
__global__ void __launch_bounds__(kNormThreads) RmsNormKernel(RmsNormParams p) {
  const int width = p.hidden_size / 4;
  float4 weight[kVectors], x[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    weight[i] = make_float4(1, 1, 1, 1);
    if (at < width && p.weight != nullptr) weight[i] = reinterpret_cast<const float4*>(p.weight)[at];
  }
  LetDependentsStart();
  WaitForInputs();
  const float4* row = reinterpret_cast<const float4*>(p.x + blockIdx.x * p.x_stride);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    x[i] = at < width ? row[at] : make_float4(0, 0, 0, 0);
  }
  if (p.bias != nullptr) {
    float4* const biased = reinterpret_cast<float4*>(p.biased + blockIdx.x * p.x_stride);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = threadIdx.x + i * blockDim.x;
      if (at >= width) continue;
      const float4 bias = reinterpret_cast<const float4*>(p.bias)[at];
      x[i].x += bias.x, x[i].y += bias.y, x[i].z += bias.z, x[i].w += bias.w;
      biased[at] = x[i];
    }
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    sum += x[i].x * x[i].x + x[i].y * x[i].y + (x[i].z * x[i].z + x[i].w * x[i].w);
  }
  sum = BlockSum(sum);
  const float inverse = p.weight == nullptr ? 1 : 1 / sqrtf(sum / static_cast<float>(p.hidden_size) + p.epsilon);
  uint2* out = static_cast<uint2*>(p.out) + static_cast<size_t>(blockIdx.x) * width;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at >= width) continue;
    out[at] = make_uint2(PackBf16(x[i].x * inverse * weight[i].x, x[i].y * inverse * weight[i].y),
                         PackBf16(x[i].z * inverse * weight[i].z, x[i].w * inverse * weight[i].w));
  }
}

void RmsNorm(Stream stream, const RmsNormParams& params) {
  const int width = params.hidden_size / 4;
  WINNOW_CHECK(params.hidden_size % 4 == 0 && width <= 8 * kNormThreads && params.x_stride % 4 == 0);
  if (params.num_rows == 0) return;
  RmsNormParams strided = params;
  if (strided.x_stride == 0) strided.x_stride = params.hidden_size;
  // Few warps that have several loads in flight each meet sooner than many.
  if (width <= 4 * kNormThreads) {
    const LaunchShape shape = {.grid = dim3(params.num_rows), .threads = DivideUp(width, 4 * kWarp) * kWarp};
    LaunchDependent(RmsNormKernel<4>, shape, stream, strided);
  } else {
    const LaunchShape shape = {.grid = dim3(params.num_rows), .threads = kNormThreads};
    LaunchDependent(RmsNormKernel<8>, shape, stream, strided);
  }
}

// One CTA per row, which is read twice: the second time from the cache.
__global__ void __launch_bounds__(kNormThreads) NormRowsKernel(NormRowsParams p) {
  LetDependentsStart();
  WaitForInputs();
  const int width = p.width / 4;
  const float4* const x = reinterpret_cast<const float4*>(p.x + blockIdx.x * p.x_stride);
  float4* const y = reinterpret_cast<float4*>(p.y + blockIdx.x * p.y_stride);
  float sum = 0;
  for (int at = threadIdx.x; at < width; at += blockDim.x) {
    const float4 v = x[at];
    sum += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
  }
  sum = BlockSum(sum);
  const float inverse = 1 / sqrtf(sum / static_cast<float>(p.width) + p.epsilon);
  for (int at = threadIdx.x; at < width; at += blockDim.x) {
    const float4 v = x[at], w = reinterpret_cast<const float4*>(p.weight)[at];
    float4 out = p.accumulate ? y[at] : make_float4(0, 0, 0, 0);
    out.x += v.x * inverse * w.x;
    out.y += v.y * inverse * w.y;
    out.z += v.z * inverse * w.z;
    out.w += v.w * inverse * w.w;
    y[at] = out;
  }
}

void NormRows(Stream stream, const NormRowsParams& params) {
  const int width = params.width / 4;
  WINNOW_CHECK(params.width % 4 == 0 && params.x_stride % 4 == 0 && params.y_stride % 4 == 0);
  if (params.num_rows == 0) return;
  const LaunchShape shape = {.grid = dim3(params.num_rows),
                             .threads = std::min<unsigned>(DivideUp(width, kWarp) * kWarp, kNormThreads)};
  LaunchDependent(NormRowsKernel, shape, stream, params);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) GatedMulKernel(GatedMulParams p) {
  LetDependentsStart();
  WaitForInputs();
  const int column = (blockIdx.y * kThreads + threadIdx.x) * 8;
  if (column >= p.intermediate_size) return;
  const size_t row = blockIdx.x;
  const T* gate = static_cast<const T*>(p.gate_up) + row * 2 * p.intermediate_size + column;
  const Float8 g = LoadFloat8(gate), up = LoadFloat8(gate + p.intermediate_size);
  Float8 out;
#pragma unroll
  for (int i = 0; i < 8; ++i) out.at[i] = Activate(p.activation, g.at[i], up.at[i]);
  StoreBf16x8(out, static_cast<__nv_bfloat16*>(p.out) + row * p.intermediate_size + column);
}

void GatedMul(Stream stream, const GatedMulParams& params) {
  WINNOW_CHECK(params.intermediate_size % 8 == 0);
  WINNOW_CHECK(params.dtype == Dtype::kF32 || params.dtype == Dtype::kBf16);
  if (params.num_rows == 0) return;
  const LaunchShape shape = EightsShape(params.num_rows, params.intermediate_size);
  LaunchDependent(params.dtype == Dtype::kF32 ? GatedMulKernel<float> : GatedMulKernel<__nv_bfloat16>, shape, stream,
                  params);
}

// Box and Muller's transform of the four words of counter i / 4: elements 4i and 4i + 1 of one pair, 4i + 2 and 4i + 3
// of the other.
__global__ void FillNormalKernel(__nv_bfloat16* out, size_t elements, uint64_t seed, float stddev) {
  LetDependentsStart();
  WaitForInputs();
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t quad = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; quad * 4 < elements; quad += stride) {
    const uint4 bits =
        Philox4x32(seed, make_uint4(static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32), 0, 0));
    const auto pair = [stddev](uint32_t radius_bits, uint32_t angle_bits) {
      const float uniform = (static_cast<float>(radius_bits >> 8) + 1) * 0x1p-24f;  // (0, 1]
      const float radius = stddev * sqrtf(-2 * logf(uniform));
      float sine, cosine;
      sincospif(static_cast<float>(angle_bits >> 8) * 0x1p-23f, &sine, &cosine);
      return make_float2(radius * cosine, radius * sine);
    };
    const float2 a = pair(bits.x, bits.y), b = pair(bits.z, bits.w);
    if (quad * 4 + 4 <= elements) {
      reinterpret_cast<uint2*>(out)[quad] = make_uint2(PackBf16(a.x, a.y), PackBf16(b.x, b.y));
    } else {
      const float values[3] = {a.x, a.y, b.x};
      for (size_t i = quad * 4; i < elements; ++i) out[i] = __float2bfloat16_rn(values[i % 4]);
    }
  }
}

void FillNormal(Stream stream, void* out, size_t elements, uint64_t seed, float stddev) {
  if (elements == 0) return;
  const LaunchShape shape = {.grid = dim3(std::min(DivideUp(elements, 4 * 256), 132u * 8)), .threads = 256};
  LaunchDependent(FillNormalKernel, shape, stream, static_cast<__nv_bfloat16*>(out), elements, seed, stddev);
}

}  // namespace

const ElementwiseKernels kElementwiseKernels = {.embed = Embed,
                                                .rms_norm = RmsNorm,
                                                .rope_append = RopeAppend,
                                                .norm_rows = NormRows,
                                                .gated_mul = GatedMul,
                                                .sample_scratch_bytes = SampleScratchBytes,
                                                .sample = Sample,
                                                .fill_normal = FillNormal};

}  // namespace winnow::device
