#include "cmd/chaos/cluster/wait.h"

#include <condition_variable>
#include <mutex>

#include "absl/strings/str_format.h"

namespace winnow::chaos {

bool SleepFor(std::chrono::milliseconds time, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any changed;
  std::unique_lock lock(mutex);
  changed.wait_for(lock, stop, time, [] { return false; });
  return !stop.stop_requested();
}

std::string TimeText(Clock::duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return seconds < 1 ? absl::StrFormat("%.0f ms", 1e3 * seconds) : absl::StrFormat("%.2f s", seconds);
}

}  // namespace winnow::chaos
