#pragma once
#include <chrono>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "cmd/admin/admin_client.h"

namespace winnow {

// How a rank that drains stands, over all routers.
struct DrainProgress {
  uint64_t before = 0;           // requests and sequences there, when it began
  uint64_t left = 0;             // now
  uint64_t moved = 0;            // requests that have gone on on other ranks since
  bool keeps_sequences = false;  // nothing can go on elsewhere: it holds KV that others cannot reach
  std::chrono::duration<double> waited{0};
  std::vector<RouterOrdered> ordered;  // who took the last order

  bool empty() const { return left == 0; }
};

// Orders a rank to drain and waits until it is empty, `stop` is requested, or `timeout` (0: none) is over. In the end
// the rank is cordoned, whatever came of it, so that what is left goes on there. `report` is called now and then.
absl::StatusOr<DrainProgress> DrainRank(const AdminClient& client, const std::string& rank,
                                        std::chrono::microseconds timeout, const std::stop_token& stop,
                                        const std::function<void(const DrainProgress&)>& report);

}  // namespace winnow
