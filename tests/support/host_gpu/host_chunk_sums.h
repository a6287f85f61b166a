#pragma once
#include "kernels/device/params/chunk_sums.h"

namespace winnow::test {

// By one of the threads that play ranks, while the others do the same.
void AddChunkOnHost(device::Stream stream, const device::ChunkSumParams& params);

}  // namespace winnow::test
