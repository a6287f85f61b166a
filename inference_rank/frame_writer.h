#pragma once
#include <chrono>
#include <cstring>
#include <span>

#include "common/base/status.h"
#include "common/transport/transport.h"
#include "inference_rank/cache_link.h"

namespace winnow {

// How long the data plane may take before a peer that is still connected counts as stuck, and how waits spend their
// time.
struct DataPlaneWaits {
  std::chrono::milliseconds timeout{10000};  // the backstop; a dead peer is noticed by its Exchange stream
  std::chrono::microseconds spin{2000};      // poll (yielding) this long before sleeping in the kernel
};

// Room for a frame on a link, waiting while the window is used up. UNAVAILABLE when the link dies, DEADLINE_EXCEEDED at
// the backstop.
inline absl::StatusOr<SendBuffer> AwaitSendBuffer(Transport& transport, CacheLink& link, size_t bytes,
                                                  const DataPlaneWaits& waits) {
  absl::StatusOr<SendBuffer> buffer = link.channel()->Allocate(bytes);
  if (buffer.ok() || buffer.status().code() != absl::StatusCode::kResourceExhausted) return buffer;
  const auto give_up = std::chrono::steady_clock::now() + waits.timeout;
  while (true) {
    if (!link.alive()) return absl::UnavailableError(absl::StrCat("cache rank ", link.peer().rank(), " is gone"));
    transport.Wait(std::chrono::milliseconds(1), waits.spin);
    buffer = link.channel()->Allocate(bytes);
    if (buffer.ok() || buffer.status().code() != absl::StatusCode::kResourceExhausted) return buffer;
    if (std::chrono::steady_clock::now() > give_up) {
      return absl::DeadlineExceededError(absl::StrCat("cache rank ", link.peer().rank(), " takes no frames"));
    }
  }
}

// Fills the sections of a payload one after the other, each at a multiple of wire::kRowAlignment.
class SectionWriter {
 public:
  explicit SectionWriter(std::span<std::byte> payload) : payload_(payload) {}
  static size_t Size(size_t section_bytes) { return wire::AlignUp(section_bytes, wire::kRowAlignment); }
  void Write(const void* bytes, size_t size) {
    std::memcpy(payload_.data() + offset_, bytes, size);
    std::memset(payload_.data() + offset_ + size, 0, Size(size) - size);
    offset_ += Size(size);
  }

 private:
  std::span<std::byte> payload_;
  size_t offset_ = 0;
};

}  // namespace winnow
