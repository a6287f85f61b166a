#include "common/base/gibibytes.h"

#include "absl/strings/str_format.h"

namespace winnow {

std::string Gibibytes(double bytes) {
  return absl::StrFormat("%.2f GiB", bytes / 1073741824.0);
}

}  // namespace winnow
