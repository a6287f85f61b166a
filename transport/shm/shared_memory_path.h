#pragma once
#include <cstddef>
#include <functional>
#include <memory>

#include "common/base/status.h"
#include "transport/payload_path.h"

namespace winnow {

// Payloads in memory that both processes of a host map: the sender writes them once, the receiver reads them where they
// are. Each side owns the memory of what it sends (a memfd, found by the peer through /proc, so that nothing is left
// behind by processes that die) and learns from a ring in it which payloads the peer is done with.
struct SharedMemoryPathOptions {
  size_t window_bytes = 0;
  // Called with every range that is mapped, for GPUs that shall copy from and to it by themselves; what it returns is
  // destroyed before the range is unmapped. An error is an error of the path.
  std::function<absl::StatusOr<std::shared_ptr<void>>(void* memory, size_t bytes)> pin = {};
};

absl::StatusOr<std::unique_ptr<PayloadPath>> NewSharedMemoryPath(const SharedMemoryPathOptions& options);

}  // namespace winnow
