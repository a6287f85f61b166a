#pragma once
#include "kernels/kernel_table.h"

// The table of each instruction set; cpu_kernels.cc checks the machine before it hands one out.

namespace winnow {

extern const KernelTable kPortableTable;
extern const KernelTable kAvx2Table;        // AVX2, FMA, F16C
extern const KernelTable kAvx512Table;      // F, BW, VL, DQ
extern const KernelTable kAvx512Bf16Table;  // and BF16

}  // namespace winnow
