#pragma once
#include <chrono>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "cmd/chaos/cluster/cluster.h"
#include "cmd/chaos/cluster/wait.h"

namespace winnow::chaos {

// What a cluster holds for requests, by a name that people read: "cache-0: sequences attached". All of it must be as
// before once no request is there.
std::map<std::string, double> HeldForRequests(const std::vector<ProcessScrape>& processes);

// How much more than at the beginning a process may have without being said to leak: a new start and another order of
// things cost some.
struct Slack {
  int64_t rss_bytes = int64_t{1} << 30;
  int64_t descriptors = 64;
  int64_t threads = 64;
};

// A cluster at rest: what it holds, and what its processes have of the machine.
class Baseline {
 public:
  static Baseline Of(const Cluster& cluster);

  // Empty when nothing is held beyond the baseline; or what is. A process that does not answer counts as held.
  std::string HeldBeyond(const Cluster& cluster) const;
  // Empty when no process has more of the machine than the baseline and the slack; or who does.
  std::string FiguresBeyond(const Cluster& cluster, const Slack& slack) const;

 private:
  std::map<std::string, double> held_;
  std::map<std::string, ProcessFigures> figures_;
};

// A wait for everything to be as at the beginning.
struct Return {
  Clock::duration held{}, figures{};  // how long it took
  std::string left;                   // what was still there at the limit; empty: nothing
};
struct ReturnLimits {
  std::chrono::milliseconds held{5000};
  std::chrono::milliseconds figures{60'000};
};
Return AwaitReturn(const Cluster& cluster, const Baseline& baseline, const Slack& slack, const ReturnLimits& limits,
                   const std::stop_token& stop);

// What counters of the cluster's processes have grown by since the object was made, across their restarts: what a
// process that was killed counted after the last look is missing.
class Growth {
 public:
  void Look(const std::vector<ProcessScrape>& processes);

  double failovers_reattached() const { return Sum("failovers reattach"); }
  double failovers_recomputed() const { return Sum("failovers recompute"); }
  // Attempts at requests that were lost, "silent 3, ended 1"; empty: none.
  std::string lost_attempts() const;
  double replayed_tokens() const { return Sum("replayed"); }
  double prompt_tokens() const { return Sum("prompt"); }
  double stale_refused() const { return Sum("stale"); }

 private:
  struct Seen {
    double start_s = 0, value = 0;
  };
  double Sum(const std::string& name) const;
  void Count(const std::string& name, const ProcessScrape& process, double start_s, double value);

  std::map<std::pair<std::string, std::string>, Seen> seen_;  // by counter and rank
  std::map<std::string, double> grown_;
};

}  // namespace winnow::chaos
