#pragma once
#include <string>

#include "common/base/status.h"

namespace winnow {

// The bytes of a tokenizer's file. NotFound, or InvalidArgument when it is larger than any tokenizer.
absl::StatusOr<std::string> ReadTokenizerFile(const std::string& path);

}  // namespace winnow
