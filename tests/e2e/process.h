#pragma once
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace winnow::e2e {

using Clock = std::chrono::steady_clock;

// Asks `done` every 20 ms; false when it was not true within `limit`.
bool WaitUntil(std::chrono::milliseconds limit, const std::function<bool()>& done);

// A process started by a test, killed with it. Start it on the main thread: the kernel ties its life to the thread that
// started it.
class Process {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  // Runs arguments[0]; its stderr goes to a file, its stdout is read here.
  Process(const std::vector<std::string>& arguments, const Environment& environment);
  Process(const Process&) = delete;
  ~Process();

  pid_t pid() const { return pid_; }
  void Signal(int signal_number) const;

  // The next line of stdout; nullopt at its end, or when none came within `limit`.
  std::optional<std::string> ReadLine(std::chrono::milliseconds limit);
  // Exit code, or 128 + signal; nullopt when it still runs after `limit`.
  std::optional<int> Wait(std::chrono::milliseconds limit);
  // What it has written to stderr.
  std::string Log() const;

 private:
  pid_t pid_ = -1;
  int stdout_fd_ = -1;
  int log_fd_ = -1;
  std::string unread_;
  std::optional<int> exit_code_;
};

// Living children of a process, in the order of their start.
std::vector<pid_t> ChildrenOf(pid_t parent);
// False for a process that has ended, whether or not it has been waited for.
bool IsAlive(pid_t pid);
// Its second argument: "router" of `winnow router ...`; empty when it cannot be read.
std::string SubcommandOf(pid_t pid);
// Open descriptors; -1 when the process is gone.
int CountFds(pid_t pid);

}  // namespace winnow::e2e
