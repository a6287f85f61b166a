#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "transport/peer/peer_watch.h"

namespace winnow {

// Tells of the death of a peer's process, where it is one of this host that this one can see.
class WatchedPeer {
 public:
  // Of this process, for the peer's Watch.
  static std::string DescribeSelf();

  // Does nothing for a peer of another host or PID namespace: the control plane tells then. INVALID_ARGUMENT for bytes
  // that DescribeSelf did not make, UNAVAILABLE where the process has ended already. `on_end` runs once, on a thread of
  // its own.
  absl::Status Watch(std::string_view peer, std::function<void(const absl::Status&)> on_end);
  // on_end does not run any more when this returns.
  void Stop() { watch_.reset(); }
  // UNAVAILABLE after its death.
  absl::Status status() const;

 private:
  absl::Status Ended() const;

  std::string name_;
  std::atomic<bool> ended_{false};
  std::unique_ptr<device::PeerWatch> watch_;  // last: its thread uses the rest
};

}  // namespace winnow
