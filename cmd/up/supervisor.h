#pragma once
#include <signal.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cmd/up/child_process.h"
#include "cmd/up/restart_delays.h"
#include "common/base/status.h"
#include "common/log/line_writer.h"

namespace winnow {

// Starts processes, passes their logs on, restarts those that die and stops them all. It is meant for one machine and a
// handful of children; a cluster has Kubernetes or Slurm for this. One thread, no other threads in the process.
//
// A child has reported: nothing -> addresses -> ready (ParentReport). While the children come up (RunUntil), one that
// dies before it was ever ready will not do better the next time: that is an error at once, and so are too many deaths
// shortly after readiness. Once they serve (KeepUp), whoever dies is restarted after a growing delay, for as long as it
// takes: the others go on meanwhile.
class Supervisor {
 public:
  struct Options {
    std::chrono::milliseconds first_backoff{100};
    std::chrono::milliseconds last_backoff{30'000};
    // A child that was ready for at least this long is not suspected of dying at each start.
    std::chrono::milliseconds long_life{10'000};
    int max_short_lives = 5;  // of a child, while the children come up
    // From SIGTERM to SIGKILL.
    std::chrono::milliseconds grace{10'000};
    // The same from the second signal on, which tells the children a second time to end.
    std::chrono::milliseconds hurried_grace{2'000};
    int log_fd = 2;
    // Writes whole lines of the log in place of log_fd, where that shares a terminal with something else.
    std::function<void(std::string_view lines)> write_log = nullptr;
  };

  // key -> address, as the child's latest run reported them.
  using Addresses = std::map<std::string, std::string>;

  struct Child {
    std::string name;  // prefix of its log lines
    std::vector<std::string> arguments;
    // The configuration for the next run; `known` is what the run before has reported (empty for the first), so that a
    // restarted child can be given the same ports again.
    std::function<std::string(const Addresses& known)> config;
    // When all are stopped, the others are told to only once this one has reported that it is drained, or has ended.
    bool drains_first = false;
  };

  // Takes over SIGINT, SIGTERM, SIGHUP and SIGCHLD of the process (they stay blocked).
  explicit Supervisor(Options options);
  // Stops everything.
  ~Supervisor();

  absl::Status Start(Child child);

  // Looks after children that come up until `done` (asked at least every 50 ms) is true. CANCELLED when a signal asks
  // to stop; any other error is the end of a child, with its last words.
  absl::Status RunUntil(const std::function<bool()>& done);
  // Looks after children that have come up. CANCELLED when a signal asks to stop; any other error is the end of a child
  // that no restart mends (exit code 2 or 127: its configuration or its program is wrong) while `serves`, asked then,
  // is false.
  absl::Status KeepUp(const std::function<bool()>& serves);

  // SIGTERM to all, those that drain first before the others; SIGKILL after the grace period. A second signal is passed
  // on to all and shortens the grace period, a third ends it. Returns when all are gone.
  void StopAll();

  // The child whose end RunUntil or KeepUp has returned as an error.
  struct Failure {
    std::string name;
    std::vector<std::string> last_lines;  // of its log, the oldest first
    int signal_number = 0;                // that killed it; 0: none
  };
  const Failure& failure() const { return failure_; }

  bool AllReady() const;
  std::vector<std::string> NotReady() const;
  const Addresses& addresses(std::string_view name) const;
  pid_t pid(std::string_view name) const;  // -1 while it does not run

 private:
  using Clock = std::chrono::steady_clock;

  struct Supervised {
    Supervised(Child of, RestartDelays restart_delays) : child(std::move(of)), delays(std::move(restart_delays)) {}

    Child child;
    ChildProcess process;
    bool ready = false;  // in this run
    bool ever_ready = false;
    bool drained = false;
    int short_lives = 0;
    RestartDelays delays;
    int restarts = 0;  // since it was ready for long
    Clock::time_point ready_since{};
    Clock::time_point restart_at{};  // while not running
    Addresses addresses;
    std::string log_rest;  // an unfinished line
    std::string report_rest;
    std::deque<std::string> last_lines;  // that it logged
  };

  absl::Status Spawn(Supervised& child);
  // Waits for something to happen, at most until `until`, and passes logs and reports on. Returns how many signals ask
  // to stop.
  int Turn(Clock::time_point until);
  void WriteLog(std::string_view lines);
  void Say(std::string_view text);
  void DrainLog(Supervised& child);
  void DrainReport(Supervised& child);
  // The end of a process that has been reaped.
  struct Death {
    Supervised* child;
    int wait_status;
    std::string text;  // who, how, and its last words
  };
  std::vector<Death> Reap();
  absl::Status FailedBy(const Death& death, std::string text);
  absl::Status CheckDeathWhileComingUp(const Death& death);
  void ScheduleRestart(Supervised& child, std::string_view why);
  void RestartDue();
  void TellToEnd(const std::function<bool(const Supervised&)>& which, int signal);
  // That there is a process which the others' end must wait for.
  bool Draining() const;
  Supervised* Find(std::string_view name) const;

  const Options options_;
  LineWriter log_;
  Failure failure_;
  UniqueFd signals_;
  std::vector<std::unique_ptr<Supervised>> children_;
};

}  // namespace winnow
