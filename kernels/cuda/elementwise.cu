#include "kernels/cuda/elementwise.h"

namespace winnow::cuda {

const ElementwiseKernels kElementwiseKernels = {};

}  // namespace winnow::cuda
