// Faults that are none: processes that are asked to end, as when a new build is rolled out.
#include <signal.h>

#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "cmd/admin/drain.h"
#include "cmd/chaos/faults/fault.h"

namespace winnow::chaos {
namespace {

using std::chrono::milliseconds;

// Answers of a router may go on for its --stop-grace.
constexpr milliseconds kGracefulEndLimit{120'000};
constexpr std::chrono::seconds kDrainLimit{120};
// A router of a machine without free cores may not answer at once.
constexpr milliseconds kOrderLimit{60'000};

absl::StatusOr<AdminClient> ConnectToRouters(const Cluster& cluster) {
  std::vector<HostPort> routers;
  for (const std::string& address : cluster.router_grpc()) {
    WINNOW_ASSIGN_OR_RETURN(HostPort router, ParseHostPort(address));
    routers.push_back(std::move(router));
  }
  return AdminClient::Connect(routers, Credentials());
}

absl::Status Uncordon(const AdminClient& routers, const std::string& rank) {
  const Clock::time_point until = Clock::now() + kOrderLimit;
  while (true) {
    absl::Status status = routers.Order({{.rank = rank, .duty = v1::RANK_DUTY_SERVE}}).status();
    if (!absl::IsUnavailable(status) || Clock::now() >= until) return status;
    std::this_thread::sleep_for(milliseconds(200));
  }
}

}  // namespace

Effect EndByItself(const Strike& strike, const Cluster& cluster, const std::stop_token& stop) {
  const Member& target = *strike.target;
  const Clock::time_point begin = Clock::now();
  if (!strike.pretend && !target.process.Signal(SIGTERM).ok()) return {.evidence = target.Name() + " is not there"};
  if (!target.process.AwaitEnd(strike.pretend ? milliseconds(0) : kGracefulEndLimit)) {
    return {.evidence = absl::StrCat(target.Name(), " has not ended within ", TimeText(Clock::now() - begin))};
  }
  return AwaitAnotherStart(absl::StrCat("ended by itself after ", TimeText(Clock::now() - begin)), begin, strike,
                           cluster, stop);
}

Effect RestartDrained(const Strike& strike, const Cluster& cluster, const std::stop_token& stop) {
  const std::string& rank = strike.target->rank;
  const absl::StatusOr<AdminClient> routers = ConnectToRouters(cluster);
  if (!routers.ok()) return {.evidence = std::string(routers.status().message())};
  if (strike.pretend) return EndByItself(strike, cluster, stop);
  absl::Cleanup uncordoned = [&] { Uncordon(*routers, rank).IgnoreError(); };
  const absl::StatusOr<DrainProgress> drained =
      DrainRank(*routers, rank, kDrainLimit, stop, [](const DrainProgress&) {});
  if (!drained.ok()) return {.evidence = absl::StrCat("not drained: ", drained.status().message())};
  if (!drained->empty()) {
    return {.evidence = absl::StrFormat("not drained: of %d requests %d are left after %s", drained->before,
                                        drained->left, TimeText(kDrainLimit))};
  }
  Effect effect = EndByItself(strike, cluster, stop);
  effect.evidence = absl::StrFormat("drained of %d requests, of which %d moved, in %.1f s; %s", drained->before,
                                    drained->moved, drained->waited.count(), effect.evidence);
  std::move(uncordoned).Cancel();
  if (const absl::Status status = Uncordon(*routers, rank); !status.ok()) {
    return {.evidence = absl::StrCat(effect.evidence, "; not uncordoned: ", status.message())};
  }
  return effect;
}

}  // namespace winnow::chaos
