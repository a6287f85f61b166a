#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace winnow {

struct Block;

// Owner of payloads that do not follow their block, because a peer or a GPU must see them too.
class PayloadMemory {
 public:
  virtual ~PayloadMemory() = default;
  // The payload's holder is done with it. The thread of the channel that it belongs to, also after that channel's end.
  virtual void Free(std::byte* payload) = 0;
  // The GPUs of this process read payloads where they lie.
  virtual bool is_pinned() const { return false; }
};

// Names a payload that stays where it is, or comes another way, while its header is sent (payload_path.h).
struct PayloadRef {
  uint64_t offset;
  uint64_t bytes;
};

// A way for a channel's payloads beside the channel itself, which carries headers, small payloads and whatever a path
// has no room for. A frame that goes this way is announced by its header and a PayloadRef, in the order of Post; it is
// delivered once its payload is there. A path belongs to one channel and its thread; nothing here waits.
class PayloadPath {
 public:
  virtual ~PayloadPath() = default;

  // What the peer's path of the same name passes to Connect.
  virtual const std::string& LocalAddress() const = 0;
  // FAILED_PRECONDITION says why payloads cannot go this way (another host, no GPU, ...). After OK the path may still
  // be on its way up.
  virtual absl::Status Connect(std::string_view peer_address) = 0;
  // True when payloads may leave this way, false while the path is on its way up; an error: they never will.
  virtual absl::StatusOr<bool> IsUp() const = 0;

  // Memory for a payload; null when there is no room now, or the payload is better sent with its header. Given back by
  // PayloadMemory::Free of memory() if it does not leave.
  virtual std::byte* Allocate(size_t bytes) = 0;
  virtual std::shared_ptr<PayloadMemory> memory() const = 0;
  // Sends a payload of Allocate on its way and takes its memory back.
  virtual absl::StatusOr<PayloadRef> Send(std::byte* payload, size_t bytes) = 0;

  // A payload was announced: block.reference is the peer's, unchecked. DATA_LOSS for one that the peer cannot have
  // sent.
  virtual absl::Status Expect(Block& block) = 0;
  // True once the payload of an expected block is there and the block holds it. Asked in the order of Expect.
  virtual absl::StatusOr<bool> HasArrived(Block& block) = 0;

  // Moves what can be moved. An error fails the channel.
  virtual absl::Status Progress() { return absl::OkStatus(); }
  // True while payloads are on their way from here that need Progress.
  virtual bool sending() const { return false; }
};

// Makes paths of one kind.
struct PayloadPathKind {
  std::string name;  // equal on both sides
  // Of a channel whose window is `window_bytes`. FAILED_PRECONDITION or UNAVAILABLE says what is missing.
  std::function<absl::StatusOr<std::unique_ptr<PayloadPath>>(size_t window_bytes)> make;
};

}  // namespace winnow
