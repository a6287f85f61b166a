#pragma once
#include "kernels/device/params/indexer.h"

namespace winnow::test {

device::IndexerKernels HostIndexerKernels();

}  // namespace winnow::test
