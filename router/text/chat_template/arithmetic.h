#pragma once
#include <string_view>

#include "common/base/status.h"
#include "router/text/chat_template/ast.h"
#include "router/text/chat_template/value.h"

// Python's arithmetic on template values.
namespace winnow::chat_template {

// + - * / // % **
absl::StatusOr<Value> Arithmetic(Heap* heap, Operator op, const Value& a, const Value& b);
absl::StatusOr<Value> Negate(const Value& a);

// The error of an operator that these two have not; names what is undefined.
absl::Status UnsupportedOperands(std::string_view symbol, const Value& a, const Value& b);

}  // namespace winnow::chat_template
