#pragma once
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
};

// Sends every request at its time, or as soon after it as `concurrency` allows, and waits for all. Results lie in the
// order of the requests.
std::vector<RequestTimes> RunLoad(const std::vector<PlannedRequest>& requests, const LoadRunOptions& options,
                                  LoadClient& client);

}  // namespace winnow
