#include "kernels/cuda/matmul/matmul_launch.cuh"

namespace winnow::device {

template void LaunchDecodeOf<F8GroupForm<128>>(Stream, const DecodeMatmulParams&);
template void LaunchDecodeOf<F8GroupForm<64>>(Stream, const DecodeMatmulParams&);
template void LaunchDecodeOf<F8GroupForm<32>>(Stream, const DecodeMatmulParams&);

}  // namespace winnow::device
