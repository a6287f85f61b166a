#include "tools/load/load_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

// False when `stop` was requested first.
bool SleepUntil(Clock::time_point time, const std::stop_token& stop) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable_any().wait_until(lock, stop, time, [] { return false; });
  return !stop.stop_requested();
}

}  // namespace

std::vector<RequestTimes> RunLoad(const std::vector<PlannedRequest>& requests, const LoadRunOptions& options,
                                  LoadClient& client) {
  std::vector<RequestTimes> times(requests.size());
  std::vector<char> ended(requests.size(), 0);
  std::mutex ended_mutex;
  size_t num_ended = 0;
  std::atomic<size_t> next{0};
  const Clock::time_point start = Clock::now();
  const auto now_s = [start] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  // Each takes the next request, makes its prompt, and sleeps until it is due.
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < requests.size();) {
      const PlannedRequest& request = requests[i];
      const LoadRequest load{.token_ids = PromptTokenIds(request.prompt, options.first_token_id, options.num_token_ids),
                             .output_tokens = request.output_tokens,
                             .stop = options.stop};
      const auto due = start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(request.at_s));
      if (!SleepUntil(due, options.stop)) return;
      times[i].due_s = request.at_s > 0 ? request.at_s : now_s();
      client.Run(load, now_s, times[i]);
      if (options.stop.stop_requested()) return;
      const std::lock_guard lock(ended_mutex);
      ended[i] = 1;
      ++num_ended;
      if (options.on_ended) options.on_ended(num_ended);
    }
  };
  {
    std::vector<std::jthread> workers;
    const size_t count = std::min<size_t>(options.concurrency, requests.size());
    for (size_t i = 0; i < count; ++i) workers.emplace_back(work);
  }
  size_t kept = 0;
  for (size_t i = 0; i < times.size(); ++i) {
    if (ended[i] != 0) std::swap(times[kept++], times[i]);
  }
  times.resize(kept);
  return times;
}

}  // namespace winnow
