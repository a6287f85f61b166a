#include "tools/load/load_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace winnow {

std::vector<RequestTimes> RunLoad(const std::vector<PlannedRequest>& requests, const LoadRunOptions& options,
                                  LoadClient& client) {
  using Clock = std::chrono::steady_clock;
  std::vector<RequestTimes> times(requests.size());
  std::atomic<size_t> next{0};
  const Clock::time_point start = Clock::now();
  const auto now_s = [start] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  // Each takes the next request, makes its prompt, and sleeps until it is due.
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < requests.size();) {
      const PlannedRequest& request = requests[i];
      const LoadRequest load{.token_ids = PromptTokenIds(request.prompt, options.first_token_id, options.num_token_ids),
                             .output_tokens = request.output_tokens};
      std::this_thread::sleep_until(
          start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(request.at_s)));
      times[i].due_s = request.at_s > 0 ? request.at_s : now_s();
      client.Run(load, now_s, times[i]);
    }
  };
  {
    std::vector<std::jthread> workers;
    const size_t count = std::min<size_t>(options.concurrency, requests.size());
    for (size_t i = 0; i < count; ++i) workers.emplace_back(work);
  }
  return times;
}

}  // namespace winnow
