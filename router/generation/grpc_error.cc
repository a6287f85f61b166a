#include "router/generation/grpc_error.h"

#include "absl/strings/ascii.h"
#include "router/generation/request_error.h"
#include "winnow/v1/error_details.pb.h"

namespace winnow {
namespace {

template <typename Detail>
void AddDetail(const char* name, const Detail& detail, v1::ErrorStatus* status) {
  v1::ErrorDetail* any = status->add_details();
  any->set_type_url(absl::StrCat("type.googleapis.com/google.rpc.", name));
  any->set_value(detail.SerializeAsString());
}

}  // namespace

grpc::Status ToRichGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const ErrorFacts facts = FactsOf(status);
  const std::string message(status.message());
  v1::ErrorStatus details;
  details.set_code(static_cast<int32_t>(status.code()));
  details.set_message(message);

  v1::ErrorInfo info;
  info.set_reason(facts.code.empty() ? absl::StatusCodeToString(status.code()) : absl::AsciiStrToUpper(facts.code));
  info.set_domain("winnow");
  AddDetail("ErrorInfo", info, &details);
  if (!facts.field.empty()) {
    v1::BadRequest bad_request;
    v1::BadRequest::FieldViolation* violation = bad_request.add_field_violations();
    violation->set_field(facts.field);
    violation->set_description(message);
    AddDetail("BadRequest", bad_request, &details);
  }
  if (facts.retry_after_s) {
    v1::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(*facts.retry_after_s);
    AddDetail("RetryInfo", retry, &details);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message, details.SerializeAsString());
}

}  // namespace winnow
