#include "router/generation/request_error.h"

#include "absl/strings/cord.h"
#include "router/keys/retry_after.h"

namespace winnow {
namespace {

constexpr char kFieldPayload[] = "winnow/param";
constexpr char kCodePayload[] = "winnow/code";

std::string PayloadOf(const absl::Status& status, const char* name) {
  const auto payload = status.GetPayload(name);
  return payload ? std::string(*payload) : std::string();
}

const char* DefaultCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return "";
    case absl::StatusCode::kUnauthenticated:
      return "invalid_api_key";
    case absl::StatusCode::kPermissionDenied:
      return "permission_denied";
    case absl::StatusCode::kNotFound:
      return "not_found";
    case absl::StatusCode::kResourceExhausted:
      return "rate_limit_exceeded";
    case absl::StatusCode::kCancelled:
      return "cancelled";
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
      return "service_unavailable";
    case absl::StatusCode::kDeadlineExceeded:
      return "timeout";
    default:
      return "internal_error";
  }
}

bool MayBeTriedAgain(absl::StatusCode code) {
  return code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kUnavailable ||
         code == absl::StatusCode::kAborted;
}

}  // namespace

absl::Status InvalidField(std::string_view field, std::string_view message, std::string_view code) {
  return WithField(absl::InvalidArgumentError(AbslSv(message)), field, code);
}

absl::Status AnnotateField(const absl::Status& status, std::string_view field) {
  if (status.ok()) return status;
  const ErrorFacts facts = FactsOf(status);
  if (!facts.field.empty()) return status;
  const bool is_value = absl::IsInvalidArgument(status) && facts.code.empty();
  return WithField(Annotate(status, field), field, is_value ? "invalid_value" : facts.code);
}

absl::Status WithField(absl::Status status, std::string_view field, std::string_view code) {
  if (!field.empty()) status.SetPayload(kFieldPayload, absl::Cord(AbslSv(field)));
  if (!code.empty()) status.SetPayload(kCodePayload, absl::Cord(AbslSv(code)));
  return status;
}

ErrorFacts FactsOf(const absl::Status& status) {
  ErrorFacts facts{
      .field = PayloadOf(status, kFieldPayload), .code = PayloadOf(status, kCodePayload), .retry_after_s = {}};
  if (facts.code.empty()) facts.code = DefaultCode(status.code());
  if (MayBeTriedAgain(status.code())) facts.retry_after_s = RetryAfter(status).value_or(1);
  return facts;
}

}  // namespace winnow
