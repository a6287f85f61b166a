#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "router/generation/request_error.h"
#include "router/generation/served_model.h"
#include "router/http/http_message.h"

namespace winnow {

// The same refusal of a field that the client calls otherwise.
absl::Status RenameField(const absl::Status& status, const std::function<std::string(const std::string&)>& rename);

// The model asked for is not served here: NOT_FOUND with the code model_not_found.
absl::Status ModelNotFound(std::string_view name, const ServedModel& served);

// How an error looks to an OpenAI client.
//
// INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED -> 400, UNAUTHENTICATED -> 401, PERMISSION_DENIED
// -> 403, NOT_FOUND -> 404, RESOURCE_EXHAUSTED (queue full) -> 429, CANCELLED -> 499, UNAVAILABLE and ABORTED -> 503,
// DEADLINE_EXCEEDED -> 504 (clients retry it, as they do 429 and 503), all else -> 500. 429 and 503 carry Retry-After,
// 401 WWW-Authenticate.
struct ApiError {
  int http_status = 500;
  std::string message;
  std::string type;
  std::string param;          // empty: null
  std::string code;           // empty: null
  int64_t retry_after_s = 1;  // of 429 and 503
};

ApiError ToApiError(const absl::Status& status);

// {"error":{"message":...,"type":...,"param":...,"code":...}}
std::string ErrorJson(const ApiError& error);

HttpResponse ErrorResponse(const absl::Status& status);

// The error of the HTTP server itself (HttpErrorFormatter).
HttpResponse HttpErrorResponse(int status, std::string_view message);

}  // namespace winnow
