#pragma once

struct CUstream_st;

namespace winnow::device {

// A stream of a device, without a vendor's headers. Launchers enqueue and return; a launch that is refused is reported by
// Device::CheckLaunches. Every launcher may run under graph capture, and none allocates.
using Stream = CUstream_st*;

}  // namespace winnow::device
