#pragma once
#include "kernels/cuda/elementwise.h"

namespace winnow::cuda {

void RopeAppend(Stream stream, const RopeAppendParams& params);

}  // namespace winnow::cuda
