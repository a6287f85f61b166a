#pragma once
#include "kernels/device/params/matmul.h"
#include "kernels/params/matmul.h"

namespace winnow::test {

// Matrices in the memory of a host's GPU. All lie row-major there, int4 with the first of two inputs in a byte's low
// bits, and scales by output features (of fp8 groups, by 16 of them) and groups, without padding.
void AddHostWeightKernels(device::MatmulKernels& kernels);

// As the CPU's kernels read it, which is made at its first use. Any thread: each GPU of a rank has its own.
PackedMatrix PackedOf(const device::DeviceMatrix& matrix);

// Device memory has been freed: other matrices may come to lie there.
void ForgetMatrices(const void* begin, const void* end);

}  // namespace winnow::test
