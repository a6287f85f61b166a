#include <absl/status/status.h>

#include <string_view>

#include "common/base/status.h"
#include "kernels/cpu/tables.h"
#include "kernels/kernel_table.h"

namespace winnow {

absl::StatusOr<const KernelTable*> CpuKernels(std::string_view isa) {
  if (isa == "auto" || isa == "portable") return &kPortableTable;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown instruction set \"", AbslSv(isa), "\" (one of: auto, portable)"));
}

}  // namespace winnow
