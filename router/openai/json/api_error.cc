#include "router/openai/json/api_error.h"

#include "absl/strings/str_replace.h"
#include "router/openai/json/json_writer.h"

namespace winnow {
namespace {

struct Mapping {
  int http_status;
  const char* type;
};

Mapping MappingOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return {400, "invalid_request_error"};
    case absl::StatusCode::kUnauthenticated:
      return {401, "invalid_request_error"};
    case absl::StatusCode::kPermissionDenied:
      return {403, "invalid_request_error"};
    case absl::StatusCode::kNotFound:
      return {404, "invalid_request_error"};
    case absl::StatusCode::kResourceExhausted:
      return {429, "rate_limit_error"};
    case absl::StatusCode::kCancelled:
      return {499, "server_error"};
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
      return {503, "service_unavailable_error"};
    case absl::StatusCode::kDeadlineExceeded:
      return {504, "timeout_error"};
    default:
      return {500, "server_error"};
  }
}

HttpResponse ToResponse(const ApiError& error) {
  HttpResponse response{.status = error.http_status, .body = ErrorJson(error)};
  if (error.http_status == 429 || error.http_status == 503) {
    response.headers.push_back({"Retry-After", std::to_string(error.retry_after_s)});
  }
  if (error.http_status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer realm=\"winnow\""});
  return response;
}

}  // namespace

absl::Status RenameField(const absl::Status& status, const std::function<std::string(const std::string&)>& rename) {
  const ErrorFacts facts = FactsOf(status);
  if (facts.field.empty()) return status;
  const std::string renamed = rename(facts.field);
  const std::string message =
      absl::StrReplaceAll(status.message(), {{absl::StrCat("\"", facts.field), absl::StrCat("\"", renamed)}});
  return WithField(absl::Status(status.code(), message), renamed, facts.code);
}

absl::Status ModelNotFound(std::string_view name, const ServedModel& served) {
  return WithField(
      absl::NotFoundError(absl::StrCat("The model \"", AbslSv(name.substr(0, 256)),
                                       "\" does not exist here; this server serves ", served.QuotedNames(), ".")),
      "model", "model_not_found");
}

ApiError ToApiError(const absl::Status& status) {
  const Mapping mapping = MappingOf(status.code());
  ErrorFacts facts = FactsOf(status);
  ApiError error{.http_status = mapping.http_status,
                 .message = std::string(StdSv(status.message())),
                 .type = mapping.type,
                 .param = std::move(facts.field),
                 .code = std::move(facts.code)};
  error.retry_after_s = facts.retry_after_s.value_or(error.retry_after_s);
  if (error.message.empty()) error.message = absl::StatusCodeToString(status.code());
  return error;
}

std::string ErrorJson(const ApiError& error) {
  const auto text_or_null = [](const std::string& text, JsonWriter* json) {
    text.empty() ? json->Null() : json->String(text);
  };
  JsonWriter json;
  json.BeginObject().Key("error").BeginObject();
  json.Key("message").String(error.message);
  json.Key("type").String(error.type);
  json.Key("param");
  text_or_null(error.param, &json);
  json.Key("code");
  text_or_null(error.code, &json);
  json.EndObject().EndObject();
  return json.Take();
}

HttpResponse ErrorResponse(const absl::Status& status) {
  return ToResponse(ToApiError(status));
}

HttpResponse HttpErrorResponse(int status, std::string_view message) {
  ApiError error{.http_status = status,
                 .message = std::string(message),
                 .type = status < 500 ? "invalid_request_error" : "server_error",
                 .param = {},
                 .code = {}};
  if (status == 404) error.code = "not_found";
  if (status == 413) error.code = "request_too_large";
  if (status == 503) error.code = "service_unavailable";
  return ToResponse(error);
}

}  // namespace winnow
