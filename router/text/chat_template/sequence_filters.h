#pragma once
#include <string_view>

#include "common/base/status.h"
#include "router/text/chat_template/value.h"

namespace winnow::chat_template {

// The filters of ApplyFilter that look at the elements of their input: list, items, join, map, select, sort and so on.
// An error for unknown names.
absl::StatusOr<Value> ApplySequenceFilter(Heap* heap, std::string_view name, const Value& input,
                                          const Arguments& arguments);

}  // namespace winnow::chat_template
