#pragma once
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cache.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/cuda/probe.h"
#include "kernels/cuda/selection.h"

namespace winnow::cuda {

// All that the CUDA backend gives: one table of launchers per family, and devices. Lives in the plugin, for ever.
struct CudaTable {
  uint32_t abi = 0;  // kCudaAbi of the plugin
  const AttentionKernels* attention = nullptr;
  const CacheKernels* cache = nullptr;
  const ElementwiseKernels* elementwise = nullptr;
  const MatmulKernels* matmul = nullptr;
  const PrefillAttentionKernels* prefill = nullptr;
  const ProbeKernels* probe = nullptr;
  const SelectionKernels* selection = nullptr;
  int (*device_count)() = nullptr;      // 0 without driver or GPU
  const char* (*why_none)() = nullptr;  // CUDA's words for it
  absl::StatusOr<std::unique_ptr<Device>> (*open_device)(int ordinal) = nullptr;
};
inline constexpr uint32_t kCudaAbi = 1;  // grows with every change of these headers that a release has seen

}  // namespace winnow::cuda
