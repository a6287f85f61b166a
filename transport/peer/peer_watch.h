#pragma once
#include <sys/types.h>

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"

namespace winnow::device {

// Watches a process of this host and tells once that it has ended.
//
// Two signs are taken, whichever comes first: the process itself (pidfd), and the hanging up of a socket whose other
// end it alone holds. The kernel closes the files of a dying process in order and reports its end after that; taking
// down a GPU's memory lies between and may take long, so a socket that was opened before the GPU is the earlier sign.
class PeerWatch {
 public:
  // `pid`: 0 for none. `socket`: a connected stream socket, -1 for none; borrowed, and what arrives on it is left
  // alone. At least one of them. `on_end` runs on the watch's thread. UNAVAILABLE where the process has ended already.
  static absl::StatusOr<std::unique_ptr<PeerWatch>> Start(pid_t pid, int socket, std::function<void()> on_end);
  // on_end does not run any more when this returns.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

 private:
  PeerWatch(int process, int socket, int stop, std::function<void()> on_end);
  void Run();

  const int process_;  // pidfd or -1
  const int socket_;
  const int stop_;  // eventfd
  const std::function<void()> on_end_;
  std::thread thread_;
};

}  // namespace winnow::device
