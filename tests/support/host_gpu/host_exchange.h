#pragma once
#include <cstdint>

#include "kernels/cuda/cache.h"
#include "kernels/cuda/predict.h"
#include "kernels/cuda/selection.h"
#include "kernels/cuda/step.h"

namespace winnow::test {

float FromBf16(uint16_t value);

// What the two sides of a lane launch, by brute force: selection over every key, residency, pushes, flags. Waits hold
// the calling thread, four times as long as they are told: these kernels are slow.
cuda::CacheKernels HostCacheKernels();
cuda::PredictKernels HostPredictKernels();
cuda::SelectionKernels HostSelectionKernels();
// Beside those of HostGpuTable.
void AddHostStepKernels(cuda::StepKernels& kernels);

}  // namespace winnow::test
