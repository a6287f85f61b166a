#pragma once
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "router/text/chat_template/value.h"

// What values consist of, as Python has it: attributes, items, slices, and what loops visit.
namespace winnow::chat_template {

// object.name: a method or attribute, else an item, else undefined.
absl::StatusOr<Value> GetAttribute(Heap* heap, const Value& object, std::string_view name);
// object[key]: an item, else an attribute, else undefined.
absl::StatusOr<Value> GetItem(Heap* heap, const Value& object, const Value& key);
// object[start:stop:step]; absent bounds are none.
absl::StatusOr<Value> Slice(Heap* heap, const Value& object, const Value& start, const Value& stop, const Value& step);

// What a for loop over the value visits: elements, keys, characters; nothing of an undefined value.
absl::StatusOr<std::vector<Value>> Iterate(Heap* heap, const Value& value);

}  // namespace winnow::chat_template
