#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/device/stream.h"

namespace winnow::device {

// Plain streams through memory: the rates that floors are computed from. (A device-to-device copy by the copy engines
// is no measure of it: on an H200 it reaches two thirds.)
struct ProbeKernels {
  // Reads everything once; `sink` (one word) is never really written. `bytes` is a multiple of 16.
  void (*read)(Stream, const void* data, size_t bytes, uint32_t* sink);
  void (*copy)(Stream, void* to, const void* from, size_t bytes);
};
extern const ProbeKernels kProbeKernels;

}  // namespace winnow::device
