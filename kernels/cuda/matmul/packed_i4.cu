#include "kernels/cuda/matmul/packed_launch.cuh"

namespace winnow::cuda {

template void LaunchPackedOf<I4GroupForm<128>>(Stream, const DecodeMatmulParams&);
template void LaunchPackedOf<I4GroupForm<64>>(Stream, const DecodeMatmulParams&);
template void LaunchPackedOf<I4GroupForm<32>>(Stream, const DecodeMatmulParams&);

}  // namespace winnow::cuda
