#include "transport/peer/p2p_path.h"

#include <utility>

#include "transport/channel_address.h"
#include "transport/peer/watched_peer.h"
#include "transport/shm/shared_memory_path.h"

namespace winnow {
namespace {

class P2pPath final : public PayloadPath {
 public:
  explicit P2pPath(std::unique_ptr<PayloadPath> shared) : shared_(std::move(shared)) {
    AppendText(local_address_, shared_->LocalAddress());
    AppendText(local_address_, WatchedPeer::DescribeSelf());
  }

  const std::string& LocalAddress() const override { return local_address_; }
  absl::Status Connect(std::string_view peer_address) override {
    const std::optional<std::string_view> shared = TakeText(peer_address), process = TakeText(peer_address);
    if (!shared.has_value() || !process.has_value()) return absl::InvalidArgumentError("not an address of p2p");
    WINNOW_RETURN_IF_ERROR(shared_->Connect(*shared));
    return peer_.Watch(*process, [](const absl::Status&) {});
  }
  absl::StatusOr<bool> IsUp() const override { return shared_->IsUp(); }

  std::byte* Allocate(size_t bytes) override { return shared_->Allocate(bytes); }
  std::shared_ptr<PayloadMemory> memory() const override { return shared_->memory(); }
  absl::StatusOr<PayloadRef> Send(std::byte* payload, size_t bytes) override { return shared_->Send(payload, bytes); }

  absl::Status Expect(Block& block) override { return shared_->Expect(block); }
  absl::StatusOr<bool> HasArrived(Block& block) override { return shared_->HasArrived(block); }

  absl::Status Progress() override {
    WINNOW_RETURN_IF_ERROR(peer_.status());
    return shared_->Progress();
  }

 private:
  const std::unique_ptr<PayloadPath> shared_;
  std::string local_address_;
  WatchedPeer peer_;
};

}  // namespace

PayloadPathKind P2pPaths(device::Device* device) {
  return {.name = "p2p", .make = [device](size_t window_bytes) -> absl::StatusOr<std::unique_ptr<PayloadPath>> {
            SharedMemoryPathOptions options{.window_bytes = window_bytes, .pin = {}};
            if (device != nullptr)
              options.pin = [device](void* memory, size_t bytes) { return device->Pin(memory, bytes); };
            WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<PayloadPath> shared, NewSharedMemoryPath(options));
            return std::make_unique<P2pPath>(std::move(shared));
          }};
}

}  // namespace winnow
