#include "cmd/role/process_http.h"

#include "cmd/up/http_probe.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using testing::HasSubstr;

class ProcessHttpTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<ProcessHttp>> Start(const HostPort& address) {
    return ProcessHttp::Start(address, registry_,
                              {.ready = [this] { return ready_; }, .live = [this] { return live_; }});
  }
  HttpAnswer Get(const ProcessHttp& http, const std::string& path) {
    const auto answer = HttpGet(http.address(), path, std::chrono::seconds(20));
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : HttpAnswer{};
  }

  std::shared_ptr<MetricsRegistry> registry_ = std::make_shared<MetricsRegistry>();
  absl::Status ready_, live_;
};

TEST_F(ProcessHttpTest, ServesMetricsAndProbes) {
  registry_->AddCounter("winnow_x_total", "Xs.").Increment(41);
  const auto http = Start({"127.0.0.1", 0});
  ASSERT_TRUE(http.ok()) << http.status();
  EXPECT_NE((*http)->address(), "127.0.0.1:0");
  EXPECT_THAT(Get(**http, "/metrics").body, HasSubstr("winnow_x_total 41\n"));
  EXPECT_EQ(Get(**http, "/ready").status, 200);
  EXPECT_EQ(Get(**http, "/live").status, 200);
  EXPECT_EQ(Get(**http, "/health").status, 200);
  EXPECT_EQ(Get(**http, "/other").status, 404);
}

TEST_F(ProcessHttpTest, SaysWhyItIsNotReadyOrNotLive) {
  ready_ = absl::UnavailableError("no \"router\"");
  live_ = absl::UnavailableError("stuck");
  const auto http = Start({"127.0.0.1", 0});
  ASSERT_TRUE(http.ok()) << http.status();
  EXPECT_EQ(Get(**http, "/ready").status, 503);
  EXPECT_EQ(Get(**http, "/ready").body, R"({"status":"not ready","reason":"no \"router\""})");
  EXPECT_EQ(Get(**http, "/live").status, 503);
  EXPECT_EQ(Get(**http, "/health").status, 200);
}

TEST_F(ProcessHttpTest, ATakenPortIsAnErrorThatNamesTheAddress) {
  const auto first = Start({"127.0.0.1", 0});
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = Start(*ParseHostPort((*first)->address()));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->address()));
  EXPECT_EQ(Start({"192.0.2.1", 0}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace winnow
