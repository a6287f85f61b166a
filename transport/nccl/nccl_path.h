#pragma once
#include <cstdint>

#include "kernels/plugin/device_table.h"
#include "transport/payload_path.h"

namespace winnow {

struct NcclPathOptions {
  int ordinal = 0;                // of the GPU
  size_t smallest_bytes = 32768;  // smaller payloads go with their headers: an operation costs more than they do
  uint32_t connect_timeout_ms = 30000;
  uint32_t operation_timeout_ms = 30000;
};

// "nccl": payloads by way of two GPUs, within a host or between hosts: pinned memory, the sender's GPU, the receiver's,
// pinned memory. A channel has a communicator of two ranks for each direction, made anew for it on a thread of its own;
// headers go ahead by the channel and name the payload's size, which both sides round up to a power of two. An
// operation holds the GPU's copy of NCCL's kernel until both sides have come to it: at most operation_timeout_ms, and
// no longer than the peer lives where that is seen (same host), or the channel is closed.
PayloadPathKind NcclPaths(const device::DeviceTable& table, const NcclPathOptions& options);

}  // namespace winnow
