// Clients of both APIs are told the same of an error.
#include "router/generation/grpc_error.h"

#include <gtest/gtest.h>

#include "absl/strings/ascii.h"
#include "router/keys/retry_after.h"
#include "router/openai/json/api_error.h"
#include "winnow/v1/error_details.pb.h"

namespace winnow {
namespace {

struct Details {
  v1::ErrorInfo info;
  std::optional<v1::BadRequest> bad_request;
  std::optional<v1::RetryInfo> retry;
};

Details DetailsOf(const grpc::Status& status) {
  v1::ErrorStatus all;
  EXPECT_TRUE(all.ParseFromString(status.error_details()));
  EXPECT_EQ(all.code(), status.error_code());
  EXPECT_EQ(all.message(), status.error_message());
  Details details;
  for (const v1::ErrorDetail& detail : all.details()) {
    if (detail.type_url() == "type.googleapis.com/google.rpc.ErrorInfo") {
      EXPECT_TRUE(details.info.ParseFromString(detail.value()));
    } else if (detail.type_url() == "type.googleapis.com/google.rpc.BadRequest") {
      EXPECT_TRUE(details.bad_request.emplace().ParseFromString(detail.value()));
    } else if (detail.type_url() == "type.googleapis.com/google.rpc.RetryInfo") {
      EXPECT_TRUE(details.retry.emplace().ParseFromString(detail.value()));
    } else {
      ADD_FAILURE() << detail.type_url();
    }
  }
  return details;
}

TEST(GrpcError, SaysWhatHttpSaysOfTheSameError) {
  const absl::Status errors[] = {InvalidField("temperature", "temperature: must be between 0 and 2, got 3"),
                                 InvalidField("winnow.trace", "too many", "unsupported_parameter"),
                                 WithField(absl::NotFoundError("no such model"), "model", "model_not_found"),
                                 ExhaustedFor(std::chrono::seconds(7), "too many requests"),
                                 absl::ResourceExhaustedError("the queue is full"),
                                 absl::UnavailableError("no inference rank can take work"),
                                 absl::UnauthenticatedError("no key"),
                                 absl::PermissionDeniedError("not yours"),
                                 absl::DeadlineExceededError("too late"),
                                 absl::InternalError("a bug")};
  for (const absl::Status& error : errors) {
    SCOPED_TRACE(error.ToString());
    const ApiError http = ToApiError(error);
    const grpc::Status rich = ToRichGrpc(error);
    EXPECT_EQ(static_cast<int>(rich.error_code()), static_cast<int>(error.code()));
    const Details details = DetailsOf(rich);
    EXPECT_EQ(details.info.domain(), "winnow");
    EXPECT_EQ(details.info.reason(), absl::AsciiStrToUpper(http.code));
    ASSERT_EQ(details.bad_request.has_value(), !http.param.empty());
    if (details.bad_request) {
      EXPECT_EQ(details.bad_request->field_violations(0).field(), http.param);
      EXPECT_EQ(details.bad_request->field_violations(0).description(), http.message);
    }
    ASSERT_EQ(details.retry.has_value(), http.http_status == 429 || http.http_status == 503);
    if (details.retry) {
      EXPECT_EQ(details.retry->retry_delay().seconds(), http.retry_after_s);
    }
  }
}

TEST(GrpcError, NamesTheCodeWhereNothingElseIsKnown) {
  EXPECT_EQ(DetailsOf(ToRichGrpc(absl::InvalidArgumentError("wrong"))).info.reason(), "INVALID_ARGUMENT");
  EXPECT_TRUE(ToRichGrpc(absl::OkStatus()).ok());
}

TEST(GrpcError, BlamesAFieldOnce) {
  const absl::Status once = AnnotateField(absl::InvalidArgumentError("is empty"), "messages");
  EXPECT_EQ(once.message(), "messages: is empty");
  EXPECT_EQ(FactsOf(once).field, "messages");
  EXPECT_EQ(AnnotateField(once, "input").message(), "messages: is empty");
}

}  // namespace
}  // namespace winnow
