#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"

namespace winnow::device {

// Bytes that an operation moves for `bytes` of payload: NCCL prepares and remembers a plan per size, so that sizes are
// rounded up to powers of two. Buffers on both sides have room for this many; the header before says `bytes`.
constexpr size_t NcclBytes(size_t bytes) {
  return std::bit_ceil(std::max<size_t>(bytes, 4096));
}

struct NcclPairOptions {
  uint32_t connect_timeout_ms = 30000;
  uint32_t operation_timeout_ms = 5000;  // between posting an operation and its end on the GPU
  // Asked, if set, while the pair connects: true gives up at once.
  std::function<bool()> is_cancelled = {};
};

// Two ranks, a GPU each, that send each other device memory by NCCL, within a host or between hosts: a communicator of
// their own, made anew for every attach.
//
// Operations of one device are posted by one thread, in plan order, to one stream; both sides post the matching ones in
// the same order. The communicator never blocks: a watchdog looks at its errors and at the age of what is under way,
// and aborts it, so that neither a dead peer nor a lost network holds a GPU or a thread.
class NcclPair {
 public:
  // Aborts what is under way, and waits for NCCL: up to half a second.
  virtual ~NcclPair() = default;

  // Enqueues. The status of the pair where it has failed.
  virtual absl::Status Send(Stream stream, const void* from, size_t bytes) = 0;
  virtual absl::Status Receive(Stream stream, void* to, size_t bytes) = 0;

  // Has what is under way ended, and refuses what comes. Waits for nothing. Any thread.
  virtual void Abort(const absl::Status& why) = 0;
  // OK, or why the pair was given up. Any thread.
  virtual absl::Status status() const = 0;
};

}  // namespace winnow::device
