#pragma once
#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/plugin/device_table.h"
#include "transport/peer/peer_link.h"

namespace winnow {

// One of two processes with a GPU each (or one GPU for both) and a p2p link between them.
enum class LinkRole { kReceiver, kSender };  // the inference rank's part and the cache rank's

// A socket between the two, and what they agree on by it.
class LinkSocket {
 public:
  explicit LinkSocket(int descriptor) : descriptor_(descriptor) {}
  // Sends `mine` and returns what the other side sent. Aborts the process when the other side is gone.
  std::string Exchange(std::string_view mine);
  void Barrier() { Exchange("."); }
  int descriptor() const { return descriptor_; }

 private:
  const int descriptor_;
};

struct LinkProcess {
  LinkRole role;
  pid_t child;  // the sender's, at the receiver
  LinkSocket socket;
};
// Forks the sender off; returns in both. Before anything touches a GPU: its state does not survive a fork.
LinkProcess ForkSender();

// Everything a side has, once its GPU is open.
struct LinkEnds {
  const device::DeviceTable* table = nullptr;
  std::unique_ptr<device::Device> device;
  std::vector<std::unique_ptr<device::DeviceMemory>> exposed;
  std::unique_ptr<device::PeerLink> link;
  bool one_gpu = false;
};
// Exposes regions of the given sizes, zeroed, and connects. The receiver takes GPU 0, the sender GPU 1 where there is
// one. `watch_socket`: the socket's end is a sign of the peer's death too.
absl::StatusOr<LinkEnds> OpenLink(LinkProcess& process, const std::vector<size_t>& region_bytes, bool watch_socket);

}  // namespace winnow
