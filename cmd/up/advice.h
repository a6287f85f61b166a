#pragma once
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace winnow {

// What a person may do about a process that did not come up: `words` is what it said last, `signal_number` what killed
// it, 0 for nothing. Never empty.
std::string AdviceFor(std::string_view words, int signal_number);

// An error with the advice for its message behind it.
absl::Status WithAdvice(const absl::Status& reason, int signal_number = 0);

}  // namespace winnow
