#include "kernels/cuda/selection.h"

namespace winnow::cuda {

const SelectionKernels kSelectionKernels = {};

}  // namespace winnow::cuda
