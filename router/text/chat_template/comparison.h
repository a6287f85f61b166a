#pragma once
#include "common/base/status.h"
#include "router/text/chat_template/ast.h"
#include "router/text/chat_template/value.h"

// Python's comparisons of template values.
namespace winnow::chat_template {

absl::StatusOr<bool> Equals(Heap* heap, const Value& a, const Value& b, int depth = 0);
// Negative, zero or positive; an error for types that have no order.
absl::StatusOr<int> Order(Heap* heap, const Value& a, const Value& b, int depth = 0);
// item in container
absl::StatusOr<bool> Contains(Heap* heap, const Value& container, const Value& item);
// One of the comparisons, "in" included.
absl::StatusOr<bool> Compare(Heap* heap, Operator op, const Value& a, const Value& b);

}  // namespace winnow::chat_template
