#pragma once
#include "kernels/cuda/step/elementwise.h"

namespace winnow::cuda {

void RopeAppend(Stream stream, const RopeAppendParams& params);

}  // namespace winnow::cuda
