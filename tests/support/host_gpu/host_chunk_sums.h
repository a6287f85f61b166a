#pragma once
#include "kernels/cuda/collective/chunk_sums.h"

namespace winnow::test {

// By one of the threads that play ranks, while the others do the same.
void AddChunkOnHost(cuda::Stream stream, const cuda::ChunkSumParams& params);

}  // namespace winnow::test
