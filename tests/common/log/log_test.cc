#include "common/log/log.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "gtest/gtest.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;

TEST(LogLimiter, AdmitsOneMessagePerIntervalAndCountsTheRest) {
  LogLimiter limiter(milliseconds(100));
  const std::chrono::steady_clock::time_point start{std::chrono::hours(1)};
  EXPECT_EQ(limiter.Admit(start), 0u);
  EXPECT_FALSE(limiter.Admit(start + milliseconds(1)).has_value());
  EXPECT_FALSE(limiter.Admit(start + milliseconds(99)).has_value());
  EXPECT_EQ(limiter.Admit(start + milliseconds(100)), 2u);
  EXPECT_FALSE(limiter.Admit(start + milliseconds(199)).has_value());
  EXPECT_EQ(limiter.Admit(start + milliseconds(900)), 1u);
}

TEST(StartLog, WritesTimeLevelRoleAndRankToStderr) {
  testing::internal::CaptureStderr();
  ASSERT_TRUE(StartLog({.role = "cache-rank", .rank = "100%", .level = "info"}).ok());
  spdlog::warn("hello {}", 7);
  spdlog::debug("not shown");
  const std::string line = testing::internal::GetCapturedStderr();
  // "2026-01-31 12:00:00.123 W cache-rank/100% hello 7\n"
  ASSERT_GT(line.size(), 23u);
  EXPECT_EQ(line.substr(23), " W cache-rank/100% hello 7\n");
  EXPECT_EQ(line[4], '-');
  EXPECT_EQ(line[19], '.');
}

TEST(StartLog, WritesAnObjectForEachMessage) {
  testing::internal::CaptureStderr();
  ASSERT_TRUE(StartLog({.role = "router", .rank = "router-0", .format = LogFormat::kJson}).ok());
  spdlog::warn("a \"quoted\" word,\na line, {}", "\xff");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  const auto line = nlohmann::json::parse(text);
  EXPECT_EQ(line["level"], "warning");
  EXPECT_EQ(line["role"], "router");
  EXPECT_EQ(line["rank"], "router-0");
  EXPECT_EQ(line["message"], "a \"quoted\" word,\na line, \xef\xbf\xbd");
  const std::string time = line["time"];
  ASSERT_EQ(time.size(), 24u) << time;  // "2026-01-31T12:00:00.123Z"
  EXPECT_EQ(time[10], 'T');
  EXPECT_EQ(time.back(), 'Z');
}

TEST(StartLog, RefusesALevelThatDoesNotExist) {
  EXPECT_EQ(StartLog({.role = "router", .rank = "", .level = "loud"}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(StartLog({.role = "router", .rank = "", .level = "off"}).ok());
}

}  // namespace
}  // namespace winnow
