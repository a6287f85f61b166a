#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "transport/payload_path.h"
#include "transport/send_window.h"
#include "transport/wire/wire.h"

// Memory for payloads: recycled, 64-byte aligned blocks in sizes of powers of two, and blocks whose payload lies in
// memory of somebody else.

namespace winnow {

// Totals of what the receiver of a channel has consumed; the difference to what was posted is under way. Written by the
// thread that destroys frames, read by the thread that returns credit (or, in one process, by the sender itself).
struct Consumption {
  std::atomic<uint64_t> bytes{0};
  std::atomic<uint64_t> frames{0};
  // A sender in this process that was refused room sets this to be called once, by the consuming thread, after its
  // counts are in.
  std::atomic<bool> starved{false};
  std::function<void()> on_room;  // constant once frames are under way; may be empty

  void Consume(uint64_t payload_bytes) {
    bytes.fetch_add(payload_bytes, std::memory_order_relaxed);
    frames.fetch_add(1, std::memory_order_seq_cst);
    if (on_room && starved.exchange(false)) on_room();
  }
};

class BlockPool;

// The prefix of a block's payload. A block belongs to one holder at a time; it keeps its pool alive.
struct alignas(64) Block {
  std::shared_ptr<BlockPool> pool;  // null while the block is in its pool
  Block* next_free = nullptr;
  uint32_t size_class = 0;
  uint32_t payload_bytes = 0;
  wire::FrameHeader header{};
  PayloadRef reference{};                    // behind the header, as it is sent
  void* sender = nullptr;                    // who holds this block while it is being sent
  std::shared_ptr<SendWindow> window;        // until Post: holds this block's reservation
  std::shared_ptr<Consumption> consumption;  // after arrival: told when the receiver is done with the payload

  std::byte* external = nullptr;          // the payload, where it does not follow this
  std::shared_ptr<PayloadMemory> memory;  // of `external`, to be freed there; null: not by this block
  bool by_reference = false;              // the frame is sent, or came, with `reference` instead of its payload

  std::byte* payload() { return external != nullptr ? external : reinterpret_cast<std::byte*>(this + 1); }
  std::span<std::byte> bytes() { return {payload(), payload_bytes}; }
};

struct ReturnBlock {
  void operator()(Block* block) const;
};
using BlockPtr = std::unique_ptr<Block, ReturnBlock>;
static_assert(offsetof(Block, reference) == offsetof(Block, header) + sizeof(wire::FrameHeader));

// Grows to the largest amount that was in use at once, which the channel's window bounds, and never shrinks. Blocks may
// be returned from any thread and may outlive the pool's owner.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  BlockPool() = default;
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // A block whose payload has room for payload_bytes <= kMaxPayloadBytes; contents unspecified.
  BlockPtr Take(size_t payload_bytes);
  size_t allocated_blocks() const;

 private:
  friend struct ReturnBlock;
  static constexpr size_t kSmallestBytes = 256;
  static constexpr size_t kNumClasses = 13;  // 256 B << 12 = kMaxPayloadBytes
  static_assert(kSmallestBytes << (kNumClasses - 1) == wire::kMaxPayloadBytes);

  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::array<Block*, kNumClasses> free_{};
  size_t allocated_blocks_ = 0;
};

}  // namespace winnow
