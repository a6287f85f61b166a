#pragma once
#include <memory>

#include "kernels/device/params/matmul.h"

// Prefill's products, by cuBLASLt; MatmulKernels says what these do.
namespace winnow::device {

std::unique_ptr<PrefillPlans> OpenPrefillPlans();
size_t PrefillWorkspaceBytes(int max_rows);
void PrefillMatmul(Stream stream, const PrefillMatmulParams& params);

}  // namespace winnow::device
