#pragma once
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "cmd/up/child_process.h"
#include "common/base/status.h"

namespace winnow::chaos {

// A network namespace that is held open, so that it is there for as long as the object.
class NetworkNamespace {
 public:
  static absl::StatusOr<NetworkNamespace> Open(const std::string& path);
  // The one in which a process is.
  static absl::StatusOr<NetworkNamespace> Of(pid_t pid);

  // Takes the calling thread there, with all threads and processes that it starts from then on.
  absl::Status Enter() const;
  // Runs it there, in a thread of its own, and waits for its end. A caller that is there already runs it itself, which
  // needs no privilege.
  absl::Status Run(const std::function<void()>& function) const;

 private:
  explicit NetworkNamespace(int fd) : fd_(std::make_shared<UniqueFd>(fd)) {}

  std::shared_ptr<UniqueFd> fd_;
};

}  // namespace winnow::chaos
