#pragma once
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

// Errors across modules are absl::Status; these two macros pass them on.
#define WINNOW_RETURN_IF_ERROR(expression)                                                    \
  do {                                                                                        \
    if (absl::Status winnow_status = (expression); !winnow_status.ok()) return winnow_status; \
  } while (false)

#define WINNOW_CONCAT_INNER(a, b) a##b
#define WINNOW_CONCAT(a, b) WINNOW_CONCAT_INNER(a, b)
#define WINNOW_ASSIGN_OR_RETURN(declaration, expression) \
  WINNOW_ASSIGN_OR_RETURN_IMPL(WINNOW_CONCAT(winnow_statusor_, __LINE__), declaration, expression)
#define WINNOW_ASSIGN_OR_RETURN_IMPL(statusor, declaration, expression) \
  auto statusor = (expression);                                         \
  if (!statusor.ok()) return std::move(statusor).status();              \
  declaration = std::move(statusor).value()

namespace winnow {

// Debian's Abseil has string_view types of its own: this is the one conversion.
inline absl::string_view AbslSv(std::string_view s) {
  return {s.data(), s.size()};
}
inline std::string_view StdSv(absl::string_view s) {
  return {s.data(), s.size()};
}

// The same error with "context: " in front of its message.
inline absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(AbslSv(context), ": ", status.message()));
}

}  // namespace winnow
