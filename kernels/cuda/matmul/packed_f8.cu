#include "kernels/cuda/matmul/packed_launch.cuh"

namespace winnow::cuda {

template void LaunchPackedOf<F8RowForm>(Stream, const DecodeMatmulParams&);
template void LaunchPackedOf<F8GroupForm<128>>(Stream, const DecodeMatmulParams&);
template void LaunchPackedOf<F8GroupForm<64>>(Stream, const DecodeMatmulParams&);
template void LaunchPackedOf<F8GroupForm<32>>(Stream, const DecodeMatmulParams&);

}  // namespace winnow::cuda
