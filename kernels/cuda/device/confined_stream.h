#pragma once
#include "absl/status/statusor.h"
#include "kernels/device/stream.h"

// Inside the plugin. Streams whose kernels run on a part of the multiprocessors alone (a "green context" of the
// driver), so that kernels of other streams find the others free at any time.
namespace winnow::device {

// Of the device that the calling thread is bound to, on that many multiprocessors or the few more that the driver's
// groups of them make, for the life of the process; `priority` as CUDA numbers it. UNIMPLEMENTED where the driver gives
// no such streams.
absl::StatusOr<Stream> NewConfinedStream(int ordinal, int num_multiprocessors, int priority);

// How many multiprocessors the kernels of a stream have, for launchers whose grids depend on it; 0: all. Any thread.
int MultiprocessorsOf(Stream stream);

}  // namespace winnow::device
