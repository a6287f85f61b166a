#pragma once
#include <chrono>
#include <cstring>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "inference_rank/links/cache_link.h"
#include "transport/transport.h"

namespace winnow {

// How long the data plane may take before a peer that is still connected counts as stuck, and how waits spend their
// time.
struct DataPlaneWaits {
  // The backstop: a dead peer is noticed by its Exchange stream, one that is cut off by LinkWatch.
  std::chrono::milliseconds timeout{10000};
  std::chrono::microseconds spin{2000};  // poll (yielding) this long before sleeping in the kernel
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
    link.MarkAwaited();
    transport.Wait(std::chrono::milliseconds(1), waits.spin);
    buffer = link.channel()->Allocate(bytes);
    if (buffer.ok() || buffer.status().code() != absl::StatusCode::kResourceExhausted) return buffer;
    if (std::chrono::steady_clock::now() > give_up) {
      return absl::DeadlineExceededError(absl::StrCat("cache rank ", link.peer().rank(), " takes no frames"));
    }
  }
}

// The sections of a payload, gathered from where their parts lie: each section begins at a multiple of
// wire::kRowAlignment. Parts side by side in memory become one copy. Reused from frame to frame.
class SectionGather {
 public:
  void Clear() {
    parts_.clear();
    bytes_ = 0;
  }
  void BeginSection() { bytes_ = wire::AlignUp(bytes_, wire::kRowAlignment); }
  void Add(const void* from, size_t bytes) {
    const auto* first = static_cast<const std::byte*>(from);
    if (!parts_.empty() && parts_.back().from + parts_.back().bytes == first &&
        parts_.back().offset + parts_.back().bytes == bytes_) {
      parts_.back().bytes += bytes;
    } else {
      parts_.push_back({first, bytes, bytes_});
    }
    bytes_ += bytes;
  }
  // Of the payload: whole alignments.
  size_t bytes() const { return wire::AlignUp(bytes_, wire::kRowAlignment); }
  // `payload` has bytes().
  void WriteTo(std::span<std::byte> payload) const {
    size_t end = 0;
    for (const Part& part : parts_) {
      std::memset(payload.data() + end, 0, part.offset - end);
      std::memcpy(payload.data() + part.offset, part.from, part.bytes);
      end = part.offset + part.bytes;
    }
    std::memset(payload.data() + end, 0, payload.size() - end);
  }

 private:
  struct Part {
    const std::byte* from;
    size_t bytes;
    size_t offset;
  };
  std::vector<Part> parts_;
  size_t bytes_ = 0;
};

}  // namespace winnow
