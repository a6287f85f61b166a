#include "transport/peer/watched_peer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <utility>

namespace winnow {
namespace {

struct Process {
  char boot_id[40];  // of the running kernel: equal on one host, whatever the container
  uint64_t pid_namespace;
  int64_t pid;
};

Process Self() {
  Process self = {};
  std::string boot_id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot_id);
  std::strncpy(self.boot_id, boot_id.c_str(), sizeof(self.boot_id) - 1);
  struct stat space = {};
  if (stat("/proc/self/ns/pid", &space) == 0) self.pid_namespace = space.st_ino;
  self.pid = getpid();
  return self;
}

}  // namespace

std::string WatchedPeer::DescribeSelf() {
  const Process self = Self();
  return std::string(reinterpret_cast<const char*>(&self), sizeof(self));
}

absl::Status WatchedPeer::Watch(std::string_view peer, std::function<void(const absl::Status&)> on_end) {
  Process process;
  if (peer.size() != sizeof(process)) return absl::InvalidArgumentError("not the description of a process");
  std::memcpy(&process, peer.data(), sizeof(process));
  const Process self = Self();
  if (std::memcmp(process.boot_id, self.boot_id, sizeof(self.boot_id)) != 0) return absl::OkStatus();
  if (process.pid_namespace != self.pid_namespace || process.pid == self.pid) return absl::OkStatus();
  name_ = absl::StrCat("process ", process.pid);
  absl::StatusOr<std::unique_ptr<device::PeerWatch>> watch =
      device::PeerWatch::Start(static_cast<pid_t>(process.pid), /*socket=*/-1, [this, on_end = std::move(on_end)] {
        ended_.store(true, std::memory_order_release);
        on_end(Ended());
      });
  // A kernel without pidfd: the control plane tells.
  if (absl::IsFailedPrecondition(watch.status())) return absl::OkStatus();
  WINNOW_RETURN_IF_ERROR(watch.status());
  watch_ = *std::move(watch);
  return absl::OkStatus();
}

absl::Status WatchedPeer::Ended() const {
  return absl::UnavailableError(absl::StrCat("the peer, ", name_, ", has ended"));
}

absl::Status WatchedPeer::status() const {
  return ended_.load(std::memory_order_acquire) ? Ended() : absl::OkStatus();
}

}  // namespace winnow
