#include "common/tracing/otlp_post.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace winnow {
namespace {

using ::testing::HasSubstr;

TEST(OtlpEndpoint, IsAnHttpUrlWithThePathOfTraces) {
  EXPECT_EQ(OtlpEndpoint::Parse("http://collector:4318")->ToString(), "http://collector:4318/v1/traces");
  EXPECT_EQ(OtlpEndpoint::Parse("http://collector:4318/")->ToString(), "http://collector:4318/v1/traces");
  EXPECT_EQ(OtlpEndpoint::Parse("http://10.0.0.7:80/otlp/")->ToString(), "http://10.0.0.7:80/otlp/v1/traces");
  EXPECT_EQ(OtlpEndpoint::Parse("http://[::1]:9")->ToString(), "http://[::1]:9/v1/traces");
}

TEST(OtlpEndpoint, HasAPortOfItsOwn) {
  EXPECT_EQ(OtlpEndpoint::Parse("http://collector")->address.port, 4318);
  EXPECT_EQ(OtlpEndpoint::Parse("http://[::1]/x")->address.port, 4318);
}

TEST(OtlpEndpoint, HttpsIsRefusedWithAWayOut) {
  const absl::Status status = OtlpEndpoint::Parse("https://collector:4318").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("https is not supported"));
}

TEST(OtlpEndpoint, OtherTextIsRefused) {
  for (const char* bad :
       {"collector:4318", "grpc://collector:4317", "http://", "http://:4318", "http://collector:0",
        "http://collector:99999", "http://user@collector:1", "http://collector:1/a?b", "http://collector:1/a b"}) {
    EXPECT_EQ(OtlpEndpoint::Parse(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(PostJson, NobodyThereIsUnavailable) {
  // Nobody listens on the port of "discard", which is not for users to take.
  const absl::Status status = PostJson(*OtlpEndpoint::Parse("http://127.0.0.1:9"), "{}", std::chrono::seconds(30));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

}  // namespace
}  // namespace winnow
