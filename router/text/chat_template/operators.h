#pragma once
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "router/text/chat_template/ast.h"
#include "router/text/chat_template/value.h"

// Python's operators on template values.
namespace winnow::chat_template {

absl::StatusOr<bool> Equals(Heap* heap, const Value& a, const Value& b, int depth = 0);
// Negative, zero or positive; an error for types that have no order.
absl::StatusOr<int> Order(Heap* heap, const Value& a, const Value& b, int depth = 0);
// item in container
absl::StatusOr<bool> Contains(Heap* heap, const Value& container, const Value& item);
// One of the comparisons, "in" included.
absl::StatusOr<bool> Compare(Heap* heap, Operator op, const Value& a, const Value& b);

// + - * / // % **
absl::StatusOr<Value> Arithmetic(Heap* heap, Operator op, const Value& a, const Value& b);
absl::StatusOr<Value> Negate(const Value& a);

// object.name: a method or attribute, else an item, else undefined.
absl::StatusOr<Value> GetAttribute(Heap* heap, const Value& object, std::string_view name);
// object[key]: an item, else an attribute, else undefined.
absl::StatusOr<Value> GetItem(Heap* heap, const Value& object, const Value& key);
// object[start:stop:step]; absent bounds are none.
absl::StatusOr<Value> Slice(Heap* heap, const Value& object, const Value& start, const Value& stop, const Value& step);

// What a for loop over the value visits: elements, keys, characters; nothing of an undefined value.
absl::StatusOr<std::vector<Value>> Iterate(Heap* heap, const Value& value);

}  // namespace winnow::chat_template
