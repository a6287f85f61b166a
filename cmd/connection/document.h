#pragma once
#include <string>

#include "common/base/status.h"

namespace winnow {

// The text of a file that is to be sent to a model. NOT_FOUND or INVALID_ARGUMENT name the file and what is wrong: it
// cannot be read, is a folder, empty, or not UTF-8.
absl::StatusOr<std::string> ReadDocument(const std::string& path);

// INVALID_ARGUMENT when a text that came from `source` cannot be sent: it is empty, or not UTF-8.
absl::Status CheckDocument(const std::string& text, const std::string& source);

}  // namespace winnow
