#include "kernels/cuda/cache.h"

namespace winnow::cuda {

const CacheKernels kCacheKernels = {};

}  // namespace winnow::cuda
