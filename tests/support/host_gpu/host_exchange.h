#pragma once
#include "kernels/cuda/rows/cache.h"
#include "kernels/cuda/select/page_units.h"
#include "kernels/cuda/select/predict.h"
#include "kernels/cuda/select/selection.h"
#include "kernels/cuda/step/attended_mass.h"
#include "kernels/cuda/step/row_digest.h"
#include "kernels/cuda/step/step.h"

namespace winnow::test {

// What the two sides of a peer link launch, by brute force: selection over every key, residency, pushes, flags. Once
// the file that $WINNOW_HOST_GPU_FLIP names is there, pushes damage the rows that they move.
cuda::CacheKernels HostCacheKernels();
cuda::AttendedMassKernels HostAttendedMassKernels();
cuda::DigestKernels HostDigestKernels();
cuda::PredictKernels HostPredictKernels();
cuda::SelectionKernels HostSelectionKernels();
cuda::PageUnitKernels HostPageUnitKernels();
void SendRows(cuda::Stream stream, const cuda::SendRowsParams& p);
void SignalAndWait(cuda::Stream stream, const cuda::RemoteFlagsParams& p);
// Beside those of HostGpuTable.
void AddHostStepKernels(cuda::StepKernels& kernels);

}  // namespace winnow::test
