#pragma once
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"

namespace winnow {

enum class Verdict { kOk, kWarn, kMissing };

// One line of `winnow doctor`, and what to do about it.
struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string_view subject;  // a literal
  std::string what = {};
  std::string advice = {};
};

inline std::string Gibibytes(double bytes) {
  return absl::StrFormat("%.1f GiB", bytes / 1073741824.0);
}

}  // namespace winnow
