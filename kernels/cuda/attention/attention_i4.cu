#include "kernels/cuda/attention/attention_launch.cuh"

namespace winnow::device {

template void LaunchDecode<Dtype::kI4>(cudaStream_t, const DecodeLaunch&);

}  // namespace winnow::device
