#include "cmd/admin/drain.h"

#include <algorithm>
#include <optional>
#include <thread>

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{100};

// Loads come with heartbeats, twice a second: longer ago than the newest one, a rank that seemed empty may have been
// given work of which no router that was asked knows.
constexpr std::chrono::milliseconds kSettled{1000};

uint64_t MovedOf(const std::vector<RouterRanks>& routers) {
  uint64_t moved = 0;
  for (const RouterRanks& router : routers) moved += router.list.moved_requests();
  return moved;
}

// What is on the rank: requests that the routers have there, or, where there are more of them, its own sequences, which
// may be of routers that were not asked.
uint64_t WorkOn(const std::vector<RouterRanks>& routers, const std::string& name) {
  uint64_t requests = 0, sequences = 0;
  for (const RouterRanks& router : routers) {
    uint64_t of_router = 0, on_rank = 0;
    for (const v1::AdminRank& rank : router.list.ranks()) {
      if (rank.identity().rank() != name) continue;
      of_router = std::max<uint64_t>(of_router, rank.requests());
      on_rank =
          std::max<uint64_t>(on_rank, uint64_t{rank.load().running_sequences()} + rank.load().waiting_sequences());
    }
    requests += of_router;
    sequences = std::max(sequences, on_rank);
  }
  return std::max(requests, sequences);
}

bool KeepsSequences(const std::vector<RouterRanks>& routers, const std::string& name) {
  for (const v1::AdminRank& rank : routers.front().list.ranks()) {
    const bool is_it = rank.identity().rank() == name;
    if (rank.hosted_by_rank() == name || (is_it && rank.identity().role() == v1::ROLE_CACHE_RANK)) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<DrainProgress> DrainRank(const AdminClient& client, const std::string& rank,
                                        std::chrono::microseconds timeout, const std::stop_token& stop,
                                        const std::function<void(const DrainProgress&)>& report) {
  const auto begin = Clock::now();
  WINNOW_ASSIGN_OR_RETURN(std::vector<RouterRanks> routers, client.List());
  DrainProgress progress;
  progress.before = WorkOn(routers, rank);
  progress.keeps_sequences = KeepsSequences(routers, rank);
  const uint64_t moved_before = MovedOf(routers);
  WINNOW_RETURN_IF_ERROR(client.Order({{.rank = rank, .duty = v1::RANK_DUTY_DRAIN}}).status());
  std::optional<Clock::time_point> empty_since;
  while (true) {
    WINNOW_ASSIGN_OR_RETURN(routers, client.List());
    progress.left = WorkOn(routers, rank);
    const uint64_t moved = MovedOf(routers);
    progress.moved = moved > moved_before ? moved - moved_before : 0;
    const auto now = Clock::now();
    progress.waited = now - begin;
    report(progress);
    if (!progress.empty()) empty_since.reset();
    if (progress.empty() && !empty_since) empty_since = now;
    if (empty_since && now - *empty_since >= kSettled) break;
    if (stop.stop_requested() || (timeout.count() > 0 && now - begin >= timeout)) break;
    std::this_thread::sleep_for(kPoll);
  }
  WINNOW_ASSIGN_OR_RETURN(progress.ordered, client.Order({{.rank = rank, .duty = v1::RANK_DUTY_CORDONED}}));
  return progress;
}

}  // namespace winnow
