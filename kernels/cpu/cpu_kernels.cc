#include <absl/status/status.h>

#include <string_view>

#include "common/base/status.h"
#include "kernels/cpu/tables.h"
#include "kernels/kernel_table.h"

namespace winnow {
namespace {

// Null if this machine can run the table, else what it lacks.
const char* MissingForAvx512() {
  if (!__builtin_cpu_supports("avx512f")) return "AVX-512 F";
  if (!__builtin_cpu_supports("avx512bw")) return "AVX-512 BW";
  if (!__builtin_cpu_supports("avx512vl")) return "AVX-512 VL";
  if (!__builtin_cpu_supports("avx512dq")) return "AVX-512 DQ";
  return nullptr;
}

}  // namespace

absl::StatusOr<const KernelTable*> CpuKernels(std::string_view isa) {
  const char* avx512_missing = MissingForAvx512();
  if (isa == "auto") return avx512_missing == nullptr ? &kAvx512Table : &kPortableTable;
  if (isa == "portable") return &kPortableTable;
  const char* missing = nullptr;
  if (isa == "avx512") {
    if (avx512_missing == nullptr) return &kAvx512Table;
    missing = avx512_missing;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown instruction set \"", AbslSv(isa), "\" (one of: auto, portable, avx512)"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("this machine lacks ", missing, ", which \"", AbslSv(isa), "\" needs"));
}

}  // namespace winnow
