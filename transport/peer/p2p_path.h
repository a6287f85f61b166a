#pragma once
#include "kernels/device/device.h"
#include "transport/payload_path.h"

namespace winnow {

// "p2p": payloads between processes of one host, in memory that both map. With a `device` (borrowed, of the thread that
// makes and uses the channels) the memory is pinned, so that GPUs of both copy from and to it by themselves; null: for
// ranks that compute on CPUs. A peer that dies fails the channel within a tenth of a second.
PayloadPathKind P2pPaths(device::Device* device);

}  // namespace winnow
