#pragma once
#include <functional>
#include <stop_token>
#include <vector>

#include "tools/load/load_client.h"
#include "tools/load/workload.h"

namespace winnow {

struct LoadRunOptions {
  // At most so many requests at once. In a closed loop that is the number of clients; with arrivals of their own,
  // requests beyond it are sent late, which the summary shows as lateness.
  uint32_t concurrency = 1;
  uint32_t first_token_id = 0;  // prompts are made of ids in [first_token_id, first_token_id + num_token_ids)
  uint32_t num_token_ids = 1;
  // Called when a request has ended, with how many have; from any thread, one at a time.
  std::function<void(size_t ended)> on_ended = nullptr;
  std::stop_token stop = {};
};

// Sends every request at its time, or as soon after it as `concurrency` allows, and waits for all. Results lie in the
// order of the requests. When `stop` is requested, nothing more is sent, what is under way is cut off, and the results
// are those of the requests that had ended.
std::vector<RequestTimes> RunLoad(const std::vector<PlannedRequest>& requests, const LoadRunOptions& options,
                                  LoadClient& client);

}  // namespace winnow
