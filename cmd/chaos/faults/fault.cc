#include "cmd/chaos/faults/fault.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace winnow::chaos {

bool FaultKind::Strikes(const Member& member) const {
  return (role.empty() || member.role == role) && member.rank.starts_with(rank_prefix);
}

Isolation FaultKind::Needs() const {
  return {.networks = action == Action::kCut || action == Action::kIsolate || action == Action::kThrottle,
          .small_disk = action == Action::kFullDisk};
}

std::vector<const Member*> FaultKind::PeersOf(const Member& target, const Members& members) const {
  std::vector<const Member*> peers;
  if (action != Action::kCut && action != Action::kIsolate) return peers;
  for (const auto& [rank, member] : members) {
    // Processes of one role have no links, but for cache ranks with replicas, which isolate cuts, too.
    const bool is_peer =
        peer_role.empty() ? action == Action::kIsolate || member.role != target.role : member.role == peer_role;
    if (rank != target.rank && is_peer) peers.push_back(&member);
  }
  return peers;
}

const std::vector<FaultKind>& AllFaults() {
  static const std::vector<FaultKind> all = {
      {"kill", Action::kKill, "", "", "kill -9 of any process"},
      {"kill-inference", Action::kKill, "inference-rank", "", "kill -9 of an inference rank"},
      {"kill-prefill", Action::kKill, "inference-rank", "prefill", "kill -9 of a rank named prefill..."},
      {"kill-cache", Action::kKill, "cache-rank", "", "kill -9 of a cache rank"},
      {"kill-router", Action::kKill, "router", "", "kill -9 of a router; clients resume their streams"},
      {"end", Action::kEnd, "", "",
       "SIGTERM of any process, which may end its work; clients resume streams of routers"},
      {"end-inference", Action::kEnd, "inference-rank", "", "the same of an inference rank"},
      {"end-cache", Action::kEnd, "cache-rank", "", "the same of a cache rank"},
      {"end-router", Action::kEnd, "router", "", "the same of a router"},
      {"restart-inference", Action::kRestart, "inference-rank", "",
       "an inference rank is drained, gets SIGTERM, and work again once it is back"},
      {"restart-cache", Action::kRestart, "cache-rank", "", "the same of a cache rank"},
      {"stop", Action::kStop, "", "", "SIGSTOP of any process, SIGCONT after a time of --stop-for"},
      {"stop-inference", Action::kStop, "inference-rank", "", "the same of an inference rank"},
      {"stop-cache", Action::kStop, "cache-rank", "", "the same of a cache rank"},
      {"stop-router", Action::kStop, "router", "", "the same of a router"},
      {"starve", Action::kStarve, "", "", "busy loops at 4 times the cores"},
      {"ports", Action::kPorts, "", "", "kill -9 of any process, whose metrics port is taken when it comes back"},
      {"memory", Action::kMemory, "", "", "any process gets no more memory from the kernel"},
      {"descriptors", Action::kDescriptors, "", "", "any process gets no more descriptors"},
      {"cut", Action::kCut, "", "", "no packet passes between two processes"},
      {"cut-cache", Action::kCut, "cache-rank", "", "the same between a cache rank and an inference rank",
       "inference-rank"},
      {"cut-router", Action::kCut, "router", "", "the same between a router and a rank"},
      {"isolate", Action::kIsolate, "", "", "no packet passes between any process and all others but clients"},
      {"isolate-cache", Action::kIsolate, "cache-rank", "", "the same of a cache rank"},
      {"throttle", Action::kThrottle, "", "", "the network link of any process carries no more than --link-rate"},
      {"throttle-cache", Action::kThrottle, "cache-rank", "", "the same of a cache rank"},
      {"full-disk", Action::kFullDisk, "", "",
       "nothing more can be written where logs, temporary files and shared memory are"}};
  return all;
}

absl::StatusOr<std::vector<FaultKind>> ParseFaults(std::string_view names) {
  std::vector<FaultKind> kinds;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(AbslSv(names), ','))) {
    const auto& all = AllFaults();
    const auto kind = std::find_if(all.begin(), all.end(), [&](const FaultKind& each) { return each.name == name; });
    if (kind != all.end()) {
      kinds.push_back(*kind);
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "--faults: \"", name, "\" is none of ", absl::StrJoin(all, ", ", [](std::string* out, const FaultKind& each) {
            absl::StrAppend(out, AbslSv(each.name));
          })));
    }
  }
  return kinds;
}

Effect Apply(const Strike& strike, const Cluster& cluster, const std::stop_token& stop) {
  const Clock::time_point begin = Clock::now();
  Effect effect;
  switch (strike.kind->action) {
    case Action::kKill:
      effect = Kill(strike, cluster, stop);
      break;
    case Action::kEnd:
      effect = EndByItself(strike, cluster, stop);
      break;
    case Action::kRestart:
      effect = RestartDrained(strike, cluster, stop);
      break;
    case Action::kPorts:
      effect = TakePort(strike, cluster, stop);
      break;
    case Action::kStop:
      effect = Suspend(strike, stop);
      break;
    case Action::kStarve:
      effect = Starve(strike, cluster, stop);
      break;
    case Action::kMemory:
      effect = LimitMemory(strike, stop);
      break;
    case Action::kDescriptors:
      effect = LimitDescriptors(strike, stop);
      break;
    case Action::kCut:
    case Action::kIsolate:
      effect = CutLinks(strike, *cluster.network(), stop);
      break;
    case Action::kThrottle:
      effect = ThrottleLink(strike, *cluster.network(), stop);
      break;
    case Action::kFullDisk:
      effect = FillDisk(strike, *cluster.disk(), stop);
      break;
  }
  effect.begin = begin;
  effect.end = Clock::now();
  return effect;
}

}  // namespace winnow::chaos
