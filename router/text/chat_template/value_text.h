#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "router/text/chat_template/value.h"

namespace winnow::chat_template {

// str(value): what {{ value }} prints. Undefined is the empty string.
absl::StatusOr<std::string> ToText(Heap* heap, const Value& value);

// repr(value), as inside a printed list.
absl::StatusOr<std::string> ToRepr(Heap* heap, const Value& value);

struct JsonStyle {
  std::optional<int> indent;  // spaces per level; none: everything in one line
  bool sort_keys = false;
  bool ensure_ascii = false;
  std::optional<std::string> item_separator;  // default ", ", with indent ","
  std::string key_separator = ": ";
};
// json.dumps(value, ensure_ascii=False, ...), which is what tojson means in chat templates.
absl::StatusOr<std::string> ToJson(Heap* heap, const Value& value, const JsonStyle& style);

// Python's repr of a float: the shortest digits that read back as the same number.
std::string FloatRepr(double value);

}  // namespace winnow::chat_template
