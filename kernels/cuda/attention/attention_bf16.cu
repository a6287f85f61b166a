#include "kernels/cuda/attention/attention_launch.cuh"

namespace winnow::device {

template void LaunchDecode<Dtype::kBf16>(cudaStream_t, const DecodeLaunch&);

}  // namespace winnow::device
