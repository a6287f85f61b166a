#include "tests/support/host_gpu/host_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "common/base/check.h"
#include "common/base/fp8.h"
#include "kernels/cpu/scalar.h"
#include "kernels/kernel_table.h"
#include "kernels/quantized_pack.h"
#include "tests/support/host_gpu/host_cpu.h"

namespace winnow::test {
namespace {

constexpr uint32_t kZeroBits = 31;  // of an int4 scale

struct Packed {
  std::unique_ptr<std::byte[]> memory;
  PackedMatrix matrix;
};
// By the matrix that they were made from.
struct PackedMatrices {
  std::mutex mutex;
  std::map<std::pair<const void*, int>, Packed> all;  // and how many of its rows
};
PackedMatrices& AllPacked() {
  static auto* const matrices = new PackedMatrices;
  return *matrices;
}

size_t CodeBytes(int out_features, int in_features, Dtype dtype) {
  return DtypeBytes(dtype, static_cast<size_t>(out_features) * in_features);
}

size_t GroupsOf(int in_features, int group_size) {
  return group_size == 0 ? 1 : static_cast<size_t>((in_features + group_size - 1) / group_size);
}

// Output features that share a row of scales.
int ScaleOutputs(Dtype dtype, int group_size) {
  return dtype == Dtype::kF8 && group_size > 0 ? device::kF8ScaleOutputs : 1;
}

size_t ScaleBytes(int out_features, int in_features, Dtype dtype, int group_size) {
  if (dtype == Dtype::kBf16) return 0;
  const int outputs = ScaleOutputs(dtype, group_size);
  const auto rows = static_cast<size_t>((out_features + outputs - 1) / outputs);
  return rows * GroupsOf(in_features, group_size) * sizeof(float);
}

uint8_t NearestF8(float value) {
  uint8_t nearest = 0;
  for (uint8_t code = 1; code < 0x7f; ++code) {
    const float better = std::fabs(std::fabs(value) - Fp8ToF32(nearest));
    const float distance = std::fabs(std::fabs(value) - Fp8ToF32(code));
    if (distance < better || (distance == better && code % 2 == 0)) nearest = code;
  }
  return std::signbit(value) ? nearest | 0x80 : nearest;
}

// The largest weight of a row comes to lie in (224, 448].
void PackF8Rows(const uint16_t* row_major, const device::DeviceMatrix& matrix) {
  const auto in = static_cast<size_t>(matrix.in_features);
  auto* const codes = static_cast<uint8_t*>(const_cast<void*>(matrix.data));
  for (size_t out = 0; out < static_cast<size_t>(matrix.out_features); ++out) {
    float largest = 0;
    for (size_t k = 0; k < in; ++k) largest = std::max(largest, std::fabs(Bf16ToF32(row_major[out * in + k])));
    const float scale = largest > 0 ? std::exp2(std::ceil(std::log2(largest / 448))) : 1;
    const_cast<float*>(matrix.scales)[out] = scale;
    for (size_t k = 0; k < in; ++k) codes[out * in + k] = NearestF8(Bf16ToF32(row_major[out * in + k]) / scale);
  }
}

void Pack(device::Stream, const void* row_major, const device::DeviceMatrix& matrix) {
  if (row_major == matrix.data) return;
  if (matrix.dtype == Dtype::kF8) {
    WINNOW_CHECK(matrix.group_size == 0);
    return PackF8Rows(static_cast<const uint16_t*>(row_major), matrix);
  }
  WINNOW_CHECK(matrix.dtype == Dtype::kBf16);
  std::memcpy(const_cast<void*>(matrix.data), row_major,
              CodeBytes(matrix.out_features, matrix.in_features, matrix.dtype));
}

void PackCodes(device::Stream, const device::MatrixCodes& from, const device::DeviceMatrix& matrix) {
  auto* const codes = static_cast<uint8_t*>(const_cast<void*>(matrix.data));
  auto* const scales = const_cast<float*>(matrix.scales);
  const size_t bytes = CodeBytes(matrix.out_features, matrix.in_features, matrix.dtype);
  for (size_t i = 0; i < bytes; ++i) {
    codes[i] = matrix.dtype == Dtype::kF8 ? from.codes[i]
                                          : static_cast<uint8_t>(from.codes[2 * i] | from.codes[2 * i + 1] << 4);
  }
  const size_t groups = GroupsOf(matrix.in_features, matrix.group_size);
  const auto outputs = static_cast<size_t>(ScaleOutputs(matrix.dtype, matrix.group_size));
  for (size_t out = 0; out < static_cast<size_t>(matrix.out_features); ++out) {
    for (size_t group = 0; group < groups; ++group) {
      float& scale = scales[out / outputs * groups + group];
      const float given = from.scales[out * groups + group];
      WINNOW_CHECK(out % outputs == 0 || scale == given);
      scale = given;
      if (matrix.dtype == Dtype::kF8) continue;
      const uint32_t bits = std::bit_cast<uint32_t>(given) & ~kZeroBits;
      scale = std::bit_cast<float>(bits | from.zeros[out * groups + group]);
    }
  }
}

std::byte* Aligned(std::byte* at) {
  return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(at) + 63) / 64 * 64);
}

// Panel by panel.
void PackCodesForCpu(const device::DeviceMatrix& matrix, const PackedMatrix& packed, std::byte* to) {
  const auto in = static_cast<size_t>(matrix.in_features);
  const size_t groups = GroupsOf(matrix.in_features, matrix.group_size);
  const auto outputs = static_cast<size_t>(ScaleOutputs(matrix.dtype, matrix.group_size));
  const auto* const codes = static_cast<const uint8_t*>(matrix.data);
  for (int first = 0; first < matrix.out_features; first += kPanel, to += PanelBytes(packed)) {
    const int count = std::min(kPanel, matrix.out_features - first);
    std::vector<uint8_t> bytes;
    std::vector<float> scales;
    std::vector<int16_t> zeros;
    const auto first_out = static_cast<size_t>(first), end = first_out + static_cast<size_t>(count);
    for (size_t out = first_out; out < end; ++out) {
      for (size_t at = out * in; at < (out + 1) * in; ++at) {
        bytes.push_back(matrix.dtype == Dtype::kF8 ? codes[at] : codes[at / 2] >> at % 2 * 4 & 15);
      }
      for (size_t group = 0; group < groups; ++group) {
        const auto word = std::bit_cast<uint32_t>(matrix.scales[out / outputs * groups + group]);
        scales.push_back(std::bit_cast<float>(matrix.dtype == Dtype::kF8 ? word : word & ~kZeroBits));
        zeros.push_back(static_cast<int16_t>(word & kZeroBits));
      }
    }
    PackQuantizedPanel({.codes = bytes.data(),
                        .scales = scales.data(),
                        .zeros = zeros.data(),
                        .num_outputs = count,
                        .matrix = packed,
                        .packed = to});
  }
}

}  // namespace

PackedMatrix PackedOf(const device::DeviceMatrix& matrix) {
  auto& [mutex, all] = AllPacked();
  const std::lock_guard lock(mutex);
  // A product may take the first rows of a matrix alone.
  const std::pair<const void*, int> key(matrix.data, matrix.out_features);
  const auto found = all.find(key);
  if (found != all.end()) return found->second.matrix;
  const int in_padded = PackedInFeatures(matrix.in_features);
  PackedMatrix packed{.out_features = matrix.out_features, .in_features = matrix.in_features, .dtype = matrix.dtype};
  if (IsQuantized(matrix.dtype)) {
    packed.group_size = matrix.group_size == 0 ? in_padded : std::min(matrix.group_size, in_padded);
  }
  const size_t bytes = IsQuantized(matrix.dtype) ? PackedBytes(packed)
                                                 : PackedBytes(matrix.out_features, matrix.in_features, matrix.dtype);
  auto memory = std::make_unique<std::byte[]>(bytes + 64);
  std::byte* const data = Aligned(memory.get());
  packed.data = data;
  if (IsQuantized(matrix.dtype)) {
    PackCodesForCpu(matrix, packed, data);
  } else {
    Cpu().pack({.weight = matrix.data,
                .dtype = Dtype::kBf16,
                .out_features = matrix.out_features,
                .in_features = matrix.in_features,
                .packed_dtype = Dtype::kBf16,
                .packed = data});
  }
  return all.emplace(key, Packed{std::move(memory), packed}).first->second.matrix;
}

void ForgetMatrices(const void* begin, const void* end) {
  auto& [mutex, all] = AllPacked();
  const std::lock_guard lock(mutex);
  all.erase(all.lower_bound({begin, 0}), all.lower_bound({end, 0}));
}

void AddHostWeightKernels(device::MatmulKernels& kernels) {
  kernels.packed_bytes = CodeBytes;
  kernels.scale_bytes = ScaleBytes;
  kernels.pack = Pack;
  kernels.pack_codes = PackCodes;
}

}  // namespace winnow::test
