#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cmd/up/child_process.h"
#include "common/base/status.h"
#include "common/config/parse_value.h"

namespace winnow::chaos {

// What the kernel says of a process at one moment.
struct ProcessFigures {
  char state = 0;  // R, S, D, T, Z ... as in /proc/PID/stat
  pid_t parent = 0;
  double start_s = 0;  // after the machine's start; with the number it names a process for ever
  double cpu_s = 0;
  double run_delay_s = 0;  // that its threads were ready to run and did not
  int64_t threads = 0;
  int64_t descriptors = 0;
  int64_t rss_bytes = 0;
  int64_t vm_bytes = 0;
};
// NOT_FOUND when there is no such process.
absl::StatusOr<ProcessFigures> ReadProcess(pid_t pid);

// A process that is held by a descriptor: a signal reaches this one or nobody, never a later one of the same number.
class Process {
 public:
  static absl::StatusOr<Process> Open(pid_t pid);

  pid_t pid() const { return pid_; }
  double start_s() const { return start_s_; }
  absl::Status Signal(int number) const;
  bool AwaitEnd(std::chrono::milliseconds limit) const;
  bool has_ended() const { return AwaitEnd(std::chrono::milliseconds(0)); }
  // Of this process; NOT_FOUND once it has ended.
  absl::StatusOr<ProcessFigures> Figures() const;

 private:
  Process(pid_t pid, double start_s, int fd) : pid_(pid), start_s_(start_s), fd_(std::make_shared<UniqueFd>(fd)) {}

  pid_t pid_;
  double start_s_;
  std::shared_ptr<UniqueFd> fd_;
};

std::vector<pid_t> ChildrenOf(pid_t parent);
std::vector<std::string> CommandLineOf(pid_t pid);
// The second of 1970 at which a process began that began so long after the machine.
double UnixTimeOf(double start_s);

// Which of these processes listens at that address of its own host, whichever that is; nullopt: none does.
std::optional<pid_t> ListenerAmong(std::span<const pid_t> candidates, const HostPort& address);
// Which process of this host listens at that address; nullopt: none does, or the address is another host's.
std::optional<pid_t> ListenerOfThisHost(const HostPort& address);

}  // namespace winnow::chaos
