#pragma once
#include <cstdint>

#include "common/base/dtype.h"
#include "common/base/status.h"

namespace winnow {

// UNIMPLEMENTED says what KV rows of that type (--kv-dtype) are not served with on the GPUs of an inference rank.
absl::Status CheckKvRowsOnGpus(Dtype kv_dtype, int num_gpus, uint64_t slot_host_memory_bytes, int head_dim);

// The same of the GPU of a cache rank, which has rows of bf16 alone.
absl::Status CheckKvRowsOnCacheGpu(Dtype kv_dtype);

}  // namespace winnow
