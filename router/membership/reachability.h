#pragma once
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/credentials.h"
#include "router/membership/registry.h"

namespace winnow {

// Finds out who reaches whom, which heartbeats do not tell: they go from the ranks to the router alone.
//
// The router dials a rank before it enters the table, and again when somebody could not reach it. Inference ranks are
// asked whether they reach each cache rank, when either joins and every few seconds from then on. The registry learns
// what comes out. Calls block threads of its own.
class Reachability {
 public:
  struct Options {
    std::chrono::milliseconds dial_timeout{1000};
    std::chrono::milliseconds sweep{1000};    // what is known to be bad is tried again so often
    std::chrono::milliseconds recheck{5000};  // and what is known to be good
    Credentials credentials = {};
  };

  // A rank that would register, and why the router does not reach it.
  struct Unreachable {
    v1::Identity identity;
    std::string reason;
    std::chrono::steady_clock::time_point when;
  };

  Reachability(Options options, Registry* registry);
  // Waits for the calls that are under way; no DialBack may be waited for any more.
  ~Reachability();

  // Dials the rank; `done` is called on another thread, with UNAVAILABLE and the reason when it does not answer.
  void DialBack(const v1::RegisterRequest& request, std::chrono::milliseconds limit,
                std::function<void(const absl::Status&)> done);

  // Tries what is due. To be called every options.sweep; changes of the table are noticed at once.
  void Sweep();

  // Ranks that have tried to register lately and were not reached.
  std::vector<Unreachable> unreachable() const;
  // Why ranks that are there, or would be, do not serve, in one line; empty when nothing is wrong.
  std::string Reasons() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Link = std::pair<RankKey, RankKey>;  // from an inference rank to a cache rank
  struct LinkState {
    bool under_way = false;
    bool checked = false;
    int failures = 0;  // in a row
    Clock::time_point next{};
    std::string reason;  // of the last failure
  };

  void DialAgain(const RankRecord& rank);
  void CheckLink(const RankRecord& inference, const RankRecord& cache);
  void LinkChecked(const Link& link, const std::string& cache_name, const absl::Status& status);
  void LogRefusal(const Unreachable& rank);

  const Options options_;
  Registry* const registry_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  bool stopping_ = false;
  std::map<std::string, Unreachable> unreachable_;  // by name
  std::map<std::string, Clock::time_point> next_log_;
  std::set<RankKey> dialing_;
  std::map<Link, LinkState> links_;

  std::unique_ptr<Registry::Subscription> subscription_;
  boost::asio::thread_pool pool_;  // its threads use what is above
};

}  // namespace winnow
