#pragma once
#include "kernels/device/params/attended_mass.h"
#include "kernels/device/params/cache.h"
#include "kernels/device/params/page_units.h"
#include "kernels/device/params/predict.h"
#include "kernels/device/params/row_digest.h"
#include "kernels/device/params/selection.h"
#include "kernels/device/params/step.h"

namespace winnow::test {

// What the two sides of a peer link launch, by brute force: selection over every key, residency, pushes, flags. Once
// the file that $WINNOW_HOST_GPU_FLIP names is there, pushes damage the rows that they move.
device::CacheKernels HostCacheKernels();
device::AttendedMassKernels HostAttendedMassKernels();
device::DigestKernels HostDigestKernels();
device::PredictKernels HostPredictKernels();
device::SelectionKernels HostSelectionKernels();
device::PageUnitKernels HostPageUnitKernels();
// Selections of whole pages, beside those of keys.
void AddHostPageKernels(device::SelectionKernels& kernels);
void SendRows(device::Stream stream, const device::SendRowsParams& p);
void SignalAndWait(device::Stream stream, const device::RemoteFlagsParams& p);
// Beside those of HostGpuTable.
void AddHostStepKernels(device::StepKernels& kernels);

}  // namespace winnow::test
