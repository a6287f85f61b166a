#include "kernels/cuda/matmul.h"

namespace winnow::cuda {

const MatmulKernels kMatmulKernels = {};

}  // namespace winnow::cuda
