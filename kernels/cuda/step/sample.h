#pragma once
#include "kernels/device/params/elementwise.h"

namespace winnow::device {

size_t SampleScratchBytes(int num_rows, int vocab_size);
void Sample(Stream stream, const SampleParams& params);

}  // namespace winnow::device
