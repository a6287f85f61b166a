#include "common/log/log.h"

#include <memory>

#include "common/log/json_formatter.h"
#include "spdlog/async.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace winnow {
namespace {

constexpr size_t kMostWaitingLines = 8192;

}  // namespace

absl::Status CheckLogLevel(const std::string& level) {
  if (level == "off" || spdlog::level::from_str(level) != spdlog::level::off) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("unknown log level \"", level, "\"; there are: trace, debug, info, warning, error, off"));
}

absl::Status StartLog(const LogOptions& options) {
  WINNOW_RETURN_IF_ERROR(CheckLogLevel(options.level));
  const spdlog::level::level_enum level = spdlog::level::from_str(options.level);
  // The logger's name is text of a pattern here, so a % in it must be doubled.
  std::string name;
  for (char c : options.rank.empty() ? options.role : options.role + "/" + options.rank) {
    name += c;
    if (c == '%') name += c;
  }
  // Before the logger, which only refers to it.
  spdlog::init_thread_pool(kMostWaitingLines, 1);
  auto logger =
      std::make_shared<spdlog::async_logger>("winnow", std::make_shared<spdlog::sinks::stderr_sink_mt>(),
                                             spdlog::thread_pool(), spdlog::async_overflow_policy::overrun_oldest);
  if (options.format == LogFormat::kJson) {
    logger->set_formatter(std::make_unique<JsonFormatter>(options.role, options.rank));
  } else {
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %L " + name + " %v");
  }
  logger->set_level(level);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

std::optional<uint64_t> LogLimiter::Admit(std::chrono::steady_clock::time_point now) {
  auto next = next_.load(std::memory_order_relaxed);
  const auto ticks = now.time_since_epoch().count();
  while (ticks >= next) {
    if (next_.compare_exchange_weak(next, ticks + interval_.count(), std::memory_order_relaxed)) {
      return held_back_.exchange(0, std::memory_order_relaxed);
    }
  }
  held_back_.fetch_add(1, std::memory_order_relaxed);
  return std::nullopt;
}

}  // namespace winnow
