#pragma once
#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cmd/up/child_process.h"
#include "common/base/status.h"

namespace winnow {

// A `winnow up` of a command's own: on free ports of this machine, for as long as the object lives. The environment's
// options (WINNOW_DEVICE and so on) count for it.
class OwnServer {
 public:
  // Returns when it serves; otherwise an error with what it said last. Call it from the one thread of a process without
  // other threads, which must not end before the object. `is_interrupted` is asked now and then: CANCELLED.
  static absl::StatusOr<std::unique_ptr<OwnServer>> Start(const std::string& model_dir, bool (*is_interrupted)());
  // The same with options of `winnow up`, which win over those that make the ports free ones. What it prints is written
  // to `log_file`, too; empty: to none.
  static absl::StatusOr<std::unique_ptr<OwnServer>> Start(const std::vector<std::string>& options,
                                                          const std::string& log_file, bool (*is_interrupted)());
  // The same by its whole command line, which begins with the path of a program: `winnow up` or what runs it, as `ip
  // netns exec` does. It may be the part of one node, too, which serves once its processes have joined a router.
  static absl::StatusOr<std::unique_ptr<OwnServer>> StartCommand(const std::vector<std::string>& command,
                                                                 const std::string& log_file, bool (*is_interrupted)());
  // Has it end in good order.
  ~OwnServer();

  // host:port; of a node without routers empty
  const std::string& http_address() const { return http_; }
  // "ready http=... grpc=... metrics=...", of a node without routers "ready node=... metrics=..."
  const std::string& ready_line() const { return ready_line_; }
  pid_t pid() const { return child_.pid; }

 private:
  explicit OwnServer(ChildProcess child) : child_(std::move(child)) {}
  // Reads what it has printed, waiting for a moment; false when it has ended.
  bool ReadLog();

  const ChildProcess child_;
  std::ofstream log_file_;
  std::string log_;  // the end of it
  std::string http_, ready_line_;
  std::atomic<bool> done_{false};
  std::thread reader_;  // once it serves: nobody is to wait for a full pipe
};

}  // namespace winnow
