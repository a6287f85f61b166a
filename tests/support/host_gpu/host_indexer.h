#pragma once
#include "kernels/cuda/indexer/indexer.h"

namespace winnow::test {

cuda::IndexerKernels HostIndexerKernels();

}  // namespace winnow::test
