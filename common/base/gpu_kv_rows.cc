#include "common/base/gpu_kv_rows.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace winnow {

absl::Status CheckKvRowsOnGpus(Dtype kv_dtype, int num_gpus, uint64_t slot_host_memory_bytes, int head_dim) {
  if (kv_dtype == Dtype::kBf16) return absl::OkStatus();
  const auto refuse = [&](std::string_view why) {
    return absl::UnimplementedError(absl::StrCat("--kv-dtype=", DtypeName(kv_dtype), ": ", AbslSv(why)));
  };
  if (kv_dtype != Dtype::kI8) return refuse("on GPUs KV rows are bf16 or int8");
  if (num_gpus > 1) return refuse("rows of int8 lie on one GPU, and --tensor-parallel has several");
  if (slot_host_memory_bytes > 0) {
    return refuse("rows of int8 lie in the memory of the GPU, and --slot-host-memory has slots behind it");
  }
  const std::array<int, 4> built = {64, 96, 128, 256};
  if (std::find(built.begin(), built.end(), head_dim) == built.end()) {
    return refuse(absl::StrCat("on GPUs rows of int8 have heads of 64, 96, 128 or 256 elements, not ", head_dim));
  }
  return absl::OkStatus();
}

absl::Status CheckKvRowsOnCacheGpu(Dtype kv_dtype) {
  if (kv_dtype == Dtype::kBf16) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("--kv-dtype=", DtypeName(kv_dtype),
                                               ": cache ranks with a GPU (--cache-device) have rows of bf16 alone"));
}

}  // namespace winnow
