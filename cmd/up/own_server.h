#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <thread>

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
  // Has it end in good order.
  ~OwnServer();

  // host:port
  const std::string& http_address() const { return http_; }

 private:
  explicit OwnServer(ChildProcess child) : child_(std::move(child)) {}
  // Reads what it has printed, waiting for a moment; false when it has ended.
  bool ReadLog();

  const ChildProcess child_;
  std::string log_;  // the end of it
  std::string http_;
  std::atomic<bool> done_{false};
  std::thread reader_;  // once it serves: nobody is to wait for a full pipe
};

}  // namespace winnow
