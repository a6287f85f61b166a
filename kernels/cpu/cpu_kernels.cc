#include <absl/status/status.h>
#include <cpuid.h>

#include <string_view>

#include "common/base/status.h"
#include "kernels/cpu/tables.h"
#include "kernels/kernel_table.h"

namespace winnow {
namespace {

struct Candidate {
  std::string_view isa;
  const KernelTable* table;
  // Null if this machine can run the table, else what it lacks.
  const char* (*missing)();
};

const char* MissingForPortable() {
  return nullptr;
}

// Clang 14 does not know this feature by name. The system must save AVX registers, too: ask for AVX2 as well.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

const char* MissingForAvx2() {
  if (!__builtin_cpu_supports("avx2")) return "AVX2";
  if (!__builtin_cpu_supports("fma")) return "FMA";
  if (!HasF16c()) return "F16C";
  return nullptr;
}

const char* MissingForAvx512() {
  if (!__builtin_cpu_supports("avx512f")) return "AVX-512 F";
  if (!__builtin_cpu_supports("avx512bw")) return "AVX-512 BW";
  if (!__builtin_cpu_supports("avx512vl")) return "AVX-512 VL";
  if (!__builtin_cpu_supports("avx512dq")) return "AVX-512 DQ";
  return nullptr;
}

const char* MissingForAvx512Bf16() {
  if (const char* missing = MissingForAvx512()) return missing;
  return __builtin_cpu_supports("avx512bf16") ? nullptr : "AVX-512 BF16";
}

// Slowest first.
constexpr Candidate kCandidates[] = {
    {"portable", &kPortableTable, MissingForPortable},
    {"avx2", &kAvx2Table, MissingForAvx2},
    {"avx512", &kAvx512Table, MissingForAvx512},
    {"avx512bf16", &kAvx512Bf16Table, MissingForAvx512Bf16},
};

const KernelTable* BestTable() {
  // vdpbf16ps is worth taking on AMD only: measured on Sapphire and Emerald Rapids it has half the throughput of f32
  // FMA.
  const bool fast_bf16 = __builtin_cpu_is("amd");
  const KernelTable* best = nullptr;
  for (const Candidate& candidate : kCandidates) {
    if (candidate.table == &kAvx512Bf16Table && !fast_bf16) continue;
    if (candidate.missing() == nullptr) best = candidate.table;
  }
  return best;
}

}  // namespace

absl::StatusOr<const KernelTable*> CpuKernels(std::string_view isa) {
  if (isa == "auto") return BestTable();
  std::string known = "auto";
  for (const Candidate& candidate : kCandidates) {
    if (candidate.isa == isa) {
      const char* missing = candidate.missing();
      if (missing == nullptr) return candidate.table;
      return absl::InvalidArgumentError(
          absl::StrCat("this machine lacks ", missing, ", which \"", AbslSv(isa), "\" needs"));
    }
    absl::StrAppend(&known, ", ", AbslSv(candidate.isa));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown instruction set \"", AbslSv(isa), "\" (one of: ", known, ")"));
}

}  // namespace winnow
