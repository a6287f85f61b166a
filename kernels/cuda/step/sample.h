#pragma once
#include "kernels/cuda/step/elementwise.h"

namespace winnow::cuda {

size_t SampleScratchBytes(int num_rows, int vocab_size);
void Sample(Stream stream, const SampleParams& params);

}  // namespace winnow::cuda
