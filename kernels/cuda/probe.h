#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace winnow::cuda {

// What a GPU's memory gives: floors of measured times are computed from it.
struct ProbeKernels {
  // Reads `bytes` (a multiple of 16) once, as fast as a simple kernel can; *sum keeps the loads alive.
  void (*read)(Stream, const void* data, size_t bytes, uint32_t* sum);
};
extern const ProbeKernels kProbeKernels;

}  // namespace winnow::cuda
