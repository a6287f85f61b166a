#pragma once
#include <string_view>

#include "common/base/status.h"
#include "router/text/chat_template/ast.h"

namespace winnow::chat_template {

// Parses a template. Errors name the line. Nesting is bounded, so that neither this nor the interpreter can overflow
// the stack.
absl::StatusOr<Body> Parse(std::string_view source);

}  // namespace winnow::chat_template
