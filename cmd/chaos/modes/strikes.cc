#include "cmd/chaos/modes/strikes.h"

#include <algorithm>
#include <thread>

namespace winnow::chaos {
namespace {

using std::chrono::milliseconds;

absl::StatusOr<PlannedStrike> Draw(const FaultKind& kind, const FaultPlan& plan, const Members& members,
                                   milliseconds load_time, std::mt19937_64& random) {
  PlannedStrike strike{.kind = kind};
  if (!kind.strikes_all()) {
    std::vector<const Member*> targets;
    for (const auto& [rank, member] : members) {
      if (kind.Strikes(member)) targets.push_back(&member);
    }
    if (targets.empty()) {
      return absl::NotFoundError(absl::StrCat(AbslSv(kind.name), ": the cluster has no such process"));
    }
    strike.target = *targets[random() % targets.size()];
    std::vector<const Member*> peers = kind.PeersOf(*strike.target, members);
    if (kind.action == Action::kCut && !peers.empty()) peers = {peers[random() % peers.size()]};
    for (const Member* peer : peers) strike.peers.push_back(*peer);
  }
  strike.at = milliseconds(random() % static_cast<uint64_t>(std::max<int64_t>(1, load_time.count() * 8 / 10)));
  strike.lasts = kind.action == Action::kStop ? plan.stop_for[random() % plan.stop_for.size()] : plan.lasts;
  return strike;
}

}  // namespace

bool PlannedStrike::MayLoseCacheRank() const {
  if (kind.action == Action::kRestart) return false;  // what it holds is over before it ends
  const auto is_cache = [](const Member& member) { return member.role == "cache-rank"; };
  return (target && is_cache(*target)) || std::any_of(peers.begin(), peers.end(), is_cache);
}

absl::StatusOr<std::vector<PlannedStrike>> DrawStrikes(const Session& session, const FaultPlan& plan, int number,
                                                       milliseconds load_time) {
  std::mt19937_64 random(session.seed * 1'000'003 + static_cast<uint64_t>(number));
  const Members members = session.cluster->Find();
  std::vector<PlannedStrike> strikes;
  for (int i = 0; i < plan.at_once; ++i) {
    const size_t kind = static_cast<size_t>((number - 1) * plan.at_once + i) % plan.kinds.size();
    WINNOW_ASSIGN_OR_RETURN(PlannedStrike strike, Draw(plan.kinds[kind], plan, members, load_time, random));
    strikes.push_back(std::move(strike));
  }
  return strikes;
}

std::vector<StruckFault> StrikeAll(const std::vector<PlannedStrike>& strikes, const Session& session,
                                   const FaultPlan& plan, Clock::time_point begin) {
  std::vector<StruckFault> struck(strikes.size());
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < strikes.size(); ++i) {
    threads.emplace_back([&, i] {
      const PlannedStrike& planned = strikes[i];
      StruckFault& fault = struck[i];
      fault.name = planned.kind.name;
      fault.target = planned.target ? planned.target->Name() : "the machine";
      if (!SleepFor(planned.at, session.stop)) return;
      fault.at_s = std::chrono::duration<double>(Clock::now() - begin).count();
      fault.effect = Apply({.kind = &planned.kind,
                            .target = planned.target ? &*planned.target : nullptr,
                            .peers = planned.peers,
                            .lasts = planned.lasts,
                            .bits_per_s = plan.bits_per_s,
                            .pretend = session.control == Control::kNoFault},
                           *session.cluster, session.stop);
    });
  }
  threads.clear();
  return struck;
}

FaultSpan SpanOf(const std::vector<StruckFault>& faults, Clock::time_point without) {
  if (faults.empty()) return {without, without};
  FaultSpan span{faults.front().effect.begin, faults.front().effect.end};
  for (const StruckFault& fault : faults) {
    span.begin = std::min(span.begin, fault.effect.begin);
    span.end = std::max(span.end, fault.effect.end);
  }
  return span;
}

}  // namespace winnow::chaos
