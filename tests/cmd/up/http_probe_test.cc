#include "cmd/up/http_probe.h"

#include "cmd/role/process_http.h"
#include "common/config/listen_address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

TEST(HttpGet, ReturnsStatusAndBody) {
  auto registry = std::make_shared<MetricsRegistry>();
  registry->AddCounter("winnow_x_total", "Xs.");
  const auto ok = [] { return absl::OkStatus(); };
  auto server = ProcessHttp::Start({"127.0.0.1", 0}, registry, {.ready = ok, .live = ok});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto answer = HttpGet((*server)->address(), "/metrics", std::chrono::seconds(20));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, 200);
  EXPECT_THAT(answer->body, testing::HasSubstr("winnow_x_total 0\n"));
  const auto missing = HttpGet((*server)->address(), "/nothing", std::chrono::seconds(20));
  ASSERT_TRUE(missing.ok()) << missing.status();
  EXPECT_EQ(missing->status, 404);
}

TEST(HttpGet, SaysThatNobodyListens) {
  const auto reserved = ReservedAddress::Reserve("127.0.0.1:0");  // bound, but refusing connections
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  EXPECT_EQ(HttpGet(reserved->address(), "/ready", std::chrono::seconds(20)).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace winnow
