#pragma once
#include <string>
#include <string_view>

namespace winnow {

enum class Verdict { kOk, kWarn, kMissing };

// One line of `winnow doctor`, and what to do about it.
struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string_view subject;  // a literal
  std::string what = {};
  std::string advice = {};
};

}  // namespace winnow
