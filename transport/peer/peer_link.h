#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"
#include "transport/peer/peer_watch.h"

namespace winnow::device {

struct PeerLinkOptions {
  int liveness_socket = -1;     // see PeerWatch; borrowed for the link's life
  bool allow_same_gpu = false;  // two processes on one GPU take turns on it, so that waits for each other run out
};

// The p2p link: memory of a GPU of another process on this host, mapped into this one by CUDA IPC, so that kernels of
// either store into the other's slots and flags. Both sides make one, hand LocalAddress to each other by any channel of
// bytes, and Connect.
//
// The peer's death sets abort_word, which ends every wait that looks at it (WaitParams). What was stored into a dead
// peer's mapped memory goes nowhere, without an error, until this link is destroyed.
class PeerLink {
 public:
  // Exposes whole allocations to the peer, in an order both sides know. They must outlive the peer's use of them.
  static absl::StatusOr<std::unique_ptr<PeerLink>> Create(Device& device, std::span<const DeviceMemory* const> exposed);
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  // Whether a link to a peer with this address is out of the question, as Connect would say, without mapping anything.
  static absl::Status CheckReachable(const Device& device, std::string_view peer_address,
                                     const PeerLinkOptions& options = {});

  const std::string& LocalAddress() const { return local_address_; }

  // Once. FAILED_PRECONDITION where the two GPUs cannot reach each other's memory (another host, no peer access, one
  // process, one GPU): use host staging then. INVALID_ARGUMENT unless a PeerLink made the address. UNAVAILABLE when the
  // peer has ended.
  absl::Status Connect(std::string_view peer_address, const PeerLinkOptions& options = {});

  // What the peer exposed, mapped. After Connect.
  size_t num_regions() const { return regions_.size(); }
  void* region(size_t i) const { return regions_[i]->data(); }
  size_t region_bytes(size_t i) const { return regions_[i]->bytes(); }

  // Words of pinned host memory for WaitParams, valid for the link's life.
  const uint32_t* abort_word() const { return words(); }
  uint32_t* error_word() const { return words() + 1; }

  // Ends all waits, now and later. Any thread.
  void Abort(const absl::Status& why);
  // OK; UNAVAILABLE after the peer's death; what Abort was told; DEADLINE_EXCEEDED after a wait that ran out. Any
  // thread.
  absl::Status status() const;

 private:
  PeerLink(Device& device, std::unique_ptr<DeviceMemory> words, std::string local_address);
  uint32_t* words() const { return static_cast<uint32_t*>(words_->data()); }

  Device& device_;
  const std::unique_ptr<DeviceMemory> words_;
  const std::string local_address_;
  std::vector<std::unique_ptr<DeviceMemory>> regions_;
  std::string peer_name_;  // constant after Connect
  mutable std::mutex mutex_;
  absl::Status aborted_;              // guarded by mutex_
  std::unique_ptr<PeerWatch> watch_;  // last: its thread uses the rest
};

}  // namespace winnow::device
