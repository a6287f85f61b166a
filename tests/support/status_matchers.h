#pragma once
#include <gmock/gmock.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace winnow {

inline const absl::Status& StatusOf(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

// EXPECT_THAT(ParseSomething(), IsOkStatus());
MATCHER(IsOkStatus, "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return arg.ok();
}

// EXPECT_THAT(ParseSomething(), FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("field")));
MATCHER_P2(FailsWith, code, message, "") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code &&
         testing::ExplainMatchResult(message, std::string(StatusOf(arg).message()), result_listener);
}

}  // namespace winnow
