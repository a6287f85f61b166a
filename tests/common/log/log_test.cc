#include "common/log/log.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>

#include "common/base/json.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;

// What has gone to stderr, once the log has written all of it.
std::string Written() {
  spdlog::shutdown();
  return testing::internal::GetCapturedStderr();
}

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
  const std::string line = Written();
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
  const std::string text = Written();
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

// A reader of stderr that has stopped reading holds up nobody who logs: threads that carry tokens do.
TEST(StartLog, NobodyWaitsForAStderrThatIsNotRead) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const int stderr_before = dup(STDERR_FILENO);
  dup2(pipe_ends[1], STDERR_FILENO);
  ASSERT_TRUE(StartLog({.role = "router", .rank = "router-0"}).ok());
  const std::string line(100, 'x');
  constexpr int kLines = 20'000;  // far more than a pipe holds, and than may wait
  for (int i = 0; i < kLines; ++i) spdlog::info("{} {}", i, line);
  // Now it is read, up to the end.
  std::string text;
  std::thread reader([&] {
    char buffer[4096];
    for (ssize_t n; (n = read(pipe_ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, n);
  });
  spdlog::shutdown();
  dup2(stderr_before, STDERR_FILENO);
  close(stderr_before);
  close(pipe_ends[1]);
  reader.join();
  close(pipe_ends[0]);
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), kLines) << "the oldest give way";
  EXPECT_NE(text.find(" 19999 x"), std::string::npos) << "the newest is there";
}

TEST(StartLog, RefusesALevelThatDoesNotExist) {
  EXPECT_EQ(StartLog({.role = "router", .rank = "", .level = "loud"}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(StartLog({.role = "router", .rank = "", .level = "off"}).ok());
}

}  // namespace
}  // namespace winnow
