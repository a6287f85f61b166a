#pragma once
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// A file descriptor that is closed with its owner.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  ~UniqueFd() { Reset(); }
  int get() const { return fd_; }
  void Reset();

 private:
  int fd_;
};

// Descriptors of a child beside its standard ones.
inline constexpr int kReportFd = 3;  // write end of a pipe to the parent (ParentReport)
inline constexpr int kConfigFd = 4;  // its configuration, a file in memory

// A running child with the parent's ends of its pipes. It leads a process group of its own, so that a terminal's Ctrl-C
// reaches the parent alone, its input is /dev/null, and the kernel kills it when the thread that spawned it ends,
// however that happens.
struct ChildProcess {
  pid_t pid = -1;
  UniqueFd log;     // the child's stdout and stderr; does not block
  UniqueFd report;  // what it writes to kReportFd; does not block
};

// Runs arguments[0] with these arguments and `config` on kConfigFd. Call it from the one thread of a process without
// other threads. A program that cannot be run shows as a child that exits with 127.
absl::StatusOr<ChildProcess> SpawnChild(const std::vector<std::string>& arguments, const std::string& config);

}  // namespace winnow
