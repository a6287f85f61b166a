#pragma once
#include <chrono>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "cmd/chaos/cluster/cluster.h"
#include "cmd/chaos/cluster/wait.h"

namespace winnow::chaos {

enum class Action {
  kKill,
  kEnd,
  kRestart,
  kStop,
  kStarve,
  kPorts,
  kMemory,
  kDescriptors,
  kCut,
  kIsolate,
  kThrottle,
  kFullDisk
};

// A fault that can be asked for by its name.
struct FaultKind {
  std::string_view name;
  Action action;
  std::string_view role;         // that it strikes; empty: any, drawn
  std::string_view rank_prefix;  // of the names that it strikes
  std::string_view help;
  std::string_view peer_role = "";  // of cut: the other end's; empty: any that it has links to

  bool Strikes(const Member& member) const;
  // Everybody rather than one process.
  bool strikes_all() const { return action == Action::kStarve || action == Action::kFullDisk; }
  // The process may end by it, or what is connected to it may.
  bool may_end() const {
    return action == Action::kKill || action == Action::kEnd || action == Action::kPorts || action == Action::kMemory ||
           action == Action::kDescriptors;
  }
  bool lasts() const { return action != Action::kKill && action != Action::kEnd; }
  // The routers are given orders, at addresses that are known of a cluster that is started here.
  bool gives_orders() const { return action == Action::kRestart; }
  // What it can only strike where the processes have it of their own.
  Isolation Needs() const;
  // Who of the others is cut off when it strikes this one, of which one is drawn where it strikes a pair.
  std::vector<const Member*> PeersOf(const Member& target, const Members& members) const;
};

// All that there are, for the help.
const std::vector<FaultKind>& AllFaults();

// Names separated by commas. INVALID_ARGUMENT for others.
absl::StatusOr<std::vector<FaultKind>> ParseFaults(std::string_view names);

struct Strike {
  const FaultKind* kind;
  const Member* target;               // of those that strike all: null
  std::vector<Member> peers = {};     // that it is cut off from
  std::chrono::milliseconds lasts{};  // of those that last
  int64_t bits_per_s = 100'000'000;   // of throttle
  bool pretend = false;               // the control: nothing is done, and looked at as if it had been
};

// What a fault is known to have done.
struct Effect {
  bool seen = false;
  std::string evidence = {};
  Clock::time_point begin = {}, end = {};
};

// Does it, waits until it is over, and looks whether it took effect. Whatever was changed is as before when this
// returns, also when `stop` is requested meanwhile; a killed process is started by whoever looks after it.
Effect Apply(const Strike& strike, const Cluster& cluster, const std::stop_token& stop);

// The parts of it.
Effect Kill(const Strike& strike, const Cluster& cluster, const std::stop_token& stop);
Effect EndByItself(const Strike& strike, const Cluster& cluster, const std::stop_token& stop);
Effect RestartDrained(const Strike& strike, const Cluster& cluster, const std::stop_token& stop);
// Of a process that has ended, `how` in words: whether another start of its rank has registered.
Effect AwaitAnotherStart(std::string how, Clock::time_point since, const Strike& strike, const Cluster& cluster,
                         const std::stop_token& stop);
Effect TakePort(const Strike& strike, const Cluster& cluster, const std::stop_token& stop);
Effect Suspend(const Strike& strike, const std::stop_token& stop);
Effect Starve(const Strike& strike, const Cluster& cluster, const std::stop_token& stop);
Effect LimitMemory(const Strike& strike, const std::stop_token& stop);
Effect LimitDescriptors(const Strike& strike, const std::stop_token& stop);
Effect CutLinks(const Strike& strike, const Network& network, const std::stop_token& stop);
Effect ThrottleLink(const Strike& strike, const Network& network, const std::stop_token& stop);
Effect FillDisk(const Strike& strike, const SmallDisk& disk, const std::stop_token& stop);

}  // namespace winnow::chaos
