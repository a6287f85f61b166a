#pragma once
#include <string_view>

#include "common/base/status.h"

namespace winnow::chat_template {

// What a template does wrong, in words for its author.
inline absl::Status Error(std::string_view what) {
  return absl::InvalidArgumentError(AbslSv(what));
}

}  // namespace winnow::chat_template
