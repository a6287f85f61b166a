#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace winnow {

// A refusal that blames one field of the request: INVALID_ARGUMENT that remembers the field's path and a code ("" =
// none).
absl::Status InvalidField(std::string_view field, std::string_view message, std::string_view code = "invalid_value");
// The same error with "field: " in front of its message, which blames the field; a field that it blames already stays.
absl::Status AnnotateField(const absl::Status& status, std::string_view field);
// `status` with field and code; empty ones change nothing.
absl::Status WithField(absl::Status status, std::string_view field, std::string_view code);

// What clients of both APIs are told of an error beside its code and message.
struct ErrorFacts {
  std::string field;  // of the request; empty: none is to blame
  // Such as "rate_limit_exceeded"; empty where an INVALID_ARGUMENT or a status like it says none.
  std::string code;
  std::optional<int64_t> retry_after_s;  // of errors that another attempt may not meet
};
ErrorFacts FactsOf(const absl::Status& status);

}  // namespace winnow
