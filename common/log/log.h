#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/logging.h"
#include "common/base/status.h"

// Logging is spdlog (common/base/logging.h): main() calls StartLog once.

namespace winnow {

enum class LogFormat { kText, kJson };

struct LogOptions {
  std::string role;            // "router", "inference-rank", "cache-rank", "up"
  std::string rank;            // "inference-0"; may be empty
  std::string level = "info";  // trace, debug, info, warning, error, off
  LogFormat format = LogFormat::kText;
};

// INVALID_ARGUMENT names the levels that there are.
absl::Status CheckLogLevel(const std::string& level);

// Sends the process's log to stderr, one line per message: "2026-01-31 12:00:00.123 I cache-rank/cache-0 message" in
// local time, or a JSON object (json_formatter.h).
// A thread of its own writes the lines, so that nobody who logs waits for a stderr that is not read: beyond 8,192
// waiting lines the oldest give way. The end of main writes what is left. INVALID_ARGUMENT for an unknown level. Call
// it once, with the signals blocked that other threads are not to take.
absl::Status StartLog(const LogOptions& options);

// Lets one message through per interval and counts the rest, for warnings that a sick peer could cause by the thousand:
//   if (auto dropped = limiter_.Admit()) spdlog::warn("bad frame from {} ({} more since)", peer, *dropped);
// Any thread.
class LogLimiter {
 public:
  explicit LogLimiter(std::chrono::milliseconds interval = std::chrono::seconds(1)) : interval_(interval) {}

  // The number of messages that were held back since the last one let through; nothing when this one is to be held
  // back.
  std::optional<uint64_t> Admit(std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now());

 private:
  const std::chrono::steady_clock::duration interval_;
  std::atomic<std::chrono::steady_clock::rep> next_{0};
  std::atomic<uint64_t> held_back_{0};
};

}  // namespace winnow
