#include "model/weights/latent_slice.h"

#include <vector>

#include "common/base/status.h"

namespace winnow {

absl::Status PackLatentSlice(const StoredWeight& weight, const KernelTable& kernels, const LatentSlice& slice,
                             const PackedMatrix& matrix, void* destination) {
  if (slice.head == 0 && !slice.values) WINNOW_RETURN_IF_ERROR(weight.CheckFinite());
  const int first = slice.head * (slice.nope_dim + slice.value_dim) + (slice.values ? slice.nope_dim : 0);
  const int count = slice.values ? slice.value_dim : slice.nope_dim;
  const auto in = static_cast<size_t>(matrix.in_features);
  std::vector<float> dense(static_cast<size_t>(matrix.out_features) * in), row;
  for (int i = 0; i < count; ++i) {
    row.clear();
    weight.AppendAsF32(static_cast<uint64_t>(first + i), 0, static_cast<uint64_t>(slice.shape.rank), row);
    for (int latent = 0; latent < slice.shape.rank; ++latent) {
      const auto place = static_cast<size_t>(slice.shape.latent_place(latent)), at = static_cast<size_t>(i);
      dense[slice.values ? at * in + place : place * in + at] = row[static_cast<size_t>(latent)];
    }
  }
  kernels.pack({.weight = dense.data(),
                .dtype = Dtype::kF32,
                .out_features = matrix.out_features,
                .in_features = matrix.in_features,
                .packed_dtype = matrix.dtype,
                .packed = destination});
  return absl::OkStatus();
}

}  // namespace winnow
