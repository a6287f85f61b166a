#pragma once
#include "kernels/cuda/matmul/matmul.h"
#include "kernels/cuda/matmul/packed_forms.cuh"

namespace winnow::cuda {

// decode_matmul of a form that VisitPackedForm gives.
template <typename Form>
void LaunchPackedOf(Stream stream, const DecodeMatmulParams& params);

// In files of their own, to be compiled beside each other.
extern template void LaunchPackedOf<F8RowForm>(Stream, const DecodeMatmulParams&);
extern template void LaunchPackedOf<F8GroupForm<128>>(Stream, const DecodeMatmulParams&);
extern template void LaunchPackedOf<F8GroupForm<64>>(Stream, const DecodeMatmulParams&);
extern template void LaunchPackedOf<F8GroupForm<32>>(Stream, const DecodeMatmulParams&);
extern template void LaunchPackedOf<I4GroupForm<128>>(Stream, const DecodeMatmulParams&);
extern template void LaunchPackedOf<I4GroupForm<64>>(Stream, const DecodeMatmulParams&);
extern template void LaunchPackedOf<I4GroupForm<32>>(Stream, const DecodeMatmulParams&);

}  // namespace winnow::cuda
