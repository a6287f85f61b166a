#include "transport/peer/peer_link.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/device/params/cache.h"

namespace winnow::device {
namespace {

constexpr uint32_t kMagic = 0x31504c57;  // "WLP1": grows with the layout
constexpr uint32_t kMaxRegions = 1024;

struct AddressHead {
  uint32_t magic;
  uint32_t num_regions;
  char boot_id[40];  // of the running kernel: equal on one host, whatever the container
  uint64_t pid_namespace;
  int64_t pid;
  char pci_bus_id[32];
};
struct AddressRegion {
  IpcHandle handle;
  uint64_t bytes;
};
static_assert(sizeof(AddressHead) == 96 && sizeof(AddressRegion) == 72);

AddressHead DescribeSelf(const Device& device) {
  AddressHead head = {};
  head.magic = kMagic;
  std::string boot_id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot_id);
  std::strncpy(head.boot_id, boot_id.c_str(), sizeof(head.boot_id) - 1);
  struct stat space = {};
  if (stat("/proc/self/ns/pid", &space) == 0) head.pid_namespace = space.st_ino;
  head.pid = getpid();
  std::strncpy(head.pci_bus_id, device.info().pci_bus_id.c_str(), sizeof(head.pci_bus_id) - 1);
  return head;
}

struct PeerAddress {
  AddressHead head;
  std::vector<AddressRegion> regions;
};

absl::StatusOr<PeerAddress> Decode(std::string_view bytes) {
  PeerAddress address;
  if (bytes.size() < sizeof(AddressHead)) return absl::InvalidArgumentError("the peer's address is cut off");
  std::memcpy(&address.head, bytes.data(), sizeof(AddressHead));
  bytes.remove_prefix(sizeof(AddressHead));
  AddressHead& head = address.head;
  if (head.magic != kMagic || head.num_regions > kMaxRegions ||
      bytes.size() != head.num_regions * sizeof(AddressRegion)) {
    return absl::InvalidArgumentError("the peer's address was not made by a p2p link of this version");
  }
  head.boot_id[sizeof(head.boot_id) - 1] = head.pci_bus_id[sizeof(head.pci_bus_id) - 1] = '\0';
  address.regions.resize(head.num_regions);
  std::memcpy(address.regions.data(), bytes.data(), bytes.size());
  return address;
}

std::string NameOf(const AddressHead& peer) {
  return absl::StrCat("process ", peer.pid, " on GPU ", peer.pci_bus_id);
}

absl::Status CheckPeer(const AddressHead& self, const AddressHead& peer, const PeerLinkOptions& options) {
  const bool same_namespace = self.pid_namespace == peer.pid_namespace;
  const auto refuse = [&](std::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat("no p2p link to ", NameOf(peer), ": ", AbslSv(why)));
  };
  if (std::strcmp(self.boot_id, peer.boot_id) != 0) return refuse("it runs on another host");
  if (same_namespace && self.pid == peer.pid) return refuse("it is this process");
  if (!same_namespace && options.liveness_socket < 0) {
    return refuse("it lives in another PID namespace, and there is no socket whose end would tell that it died");
  }
  if (!options.allow_same_gpu && std::strcmp(self.pci_bus_id, peer.pci_bus_id) == 0) {
    return refuse("both use the same GPU, where waits for each other cannot run side by side");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerLink>> PeerLink::Create(Device& device,
                                                           std::span<const DeviceMemory* const> exposed) {
  WINNOW_CHECK(exposed.size() <= kMaxRegions);
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> words, device.AllocatePinned(2 * sizeof(uint32_t)));
  std::memset(words->data(), 0, words->bytes());
  AddressHead head = DescribeSelf(device);
  head.num_regions = static_cast<uint32_t>(exposed.size());
  std::string address(reinterpret_cast<const char*>(&head), sizeof(head));
  for (const DeviceMemory* memory : exposed) {
    AddressRegion region = {};
    WINNOW_ASSIGN_OR_RETURN(region.handle, device.Export(*memory));
    region.bytes = memory->bytes();
    address.append(reinterpret_cast<const char*>(&region), sizeof(region));
  }
  return std::unique_ptr<PeerLink>(new PeerLink(device, std::move(words), std::move(address)));
}

PeerLink::PeerLink(Device& device, std::unique_ptr<DeviceMemory> words, std::string local_address)
    : device_(device), words_(std::move(words)), local_address_(std::move(local_address)) {}

absl::Status PeerLink::CheckReachable(const Device& device, std::string_view peer_address,
                                      const PeerLinkOptions& options) {
  WINNOW_ASSIGN_OR_RETURN(const PeerAddress peer, Decode(peer_address));
  return CheckPeer(DescribeSelf(device), peer.head, options);
}

absl::Status PeerLink::Connect(std::string_view peer_address, const PeerLinkOptions& options) {
  WINNOW_CHECK(peer_name_.empty());
  WINNOW_ASSIGN_OR_RETURN(const PeerAddress peer, Decode(peer_address));
  const AddressHead self = DescribeSelf(device_);
  WINNOW_RETURN_IF_ERROR(CheckPeer(self, peer.head, options));
  const std::string name = NameOf(peer.head);
  const bool same_namespace = self.pid_namespace == peer.head.pid_namespace;
  for (const AddressRegion& region : peer.regions) {
    absl::StatusOr<std::unique_ptr<DeviceMemory>> memory = device_.Import(region.handle, region.bytes);
    if (memory.ok()) {
      regions_.push_back(*std::move(memory));
      continue;
    }
    regions_.clear();
    return Annotate(memory.status(), absl::StrCat("no p2p link from GPU ", self.pci_bus_id, " to ", name));
  }
  peer_name_ = name;
  absl::StatusOr<std::unique_ptr<PeerWatch>> watch =
      PeerWatch::Start(same_namespace ? static_cast<pid_t>(peer.head.pid) : 0, options.liveness_socket,
                       [this] { Abort(absl::UnavailableError(absl::StrCat(peer_name_, " has ended"))); });
  if (!watch.ok()) {
    Abort(watch.status());
    return watch.status();
  }
  watch_ = *std::move(watch);
  return absl::OkStatus();
}

void PeerLink::Abort(const absl::Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_.ok()) aborted_ = why;
  }
  std::atomic_ref(words()[0]).store(1, std::memory_order_release);
}

absl::Status PeerLink::status() const {
  {
    const std::lock_guard lock(mutex_);
    if (!aborted_.ok()) return aborted_;
  }
  if (std::atomic_ref(*error_word()).load(std::memory_order_acquire) == kWaitTimedOut) {
    return absl::DeadlineExceededError(absl::StrCat("a wait for ", peer_name_, " ran out"));
  }
  return absl::OkStatus();
}

}  // namespace winnow::device
