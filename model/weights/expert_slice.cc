#include "model/weights/expert_slice.h"

#include <algorithm>
#include <vector>

#include "common/base/status.h"
#include "common/model/model_tensors.h"
#include "common/model/tensor_elements.h"

namespace winnow {

namespace {

void PackPanel(const KernelTable& kernels, const float* rows, size_t count, const PackedMatrix& matrix,
               uint8_t* packed) {
  kernels.pack({.weight = rows,
                .dtype = Dtype::kF32,
                .out_features = static_cast<int>(count),
                .in_features = matrix.in_features,
                .packed_dtype = matrix.dtype,
                .packed = packed});
}

}  // namespace

absl::Status PackExpertSlice(const Checkpoint& checkpoint, const KernelTable& kernels, const ExpertSlice& slice,
                             const PackedMatrix& matrix, void* destination) {
  WINNOW_ASSIGN_OR_RETURN(TensorView view, checkpoint.Find(slice.tensor));
  const auto in = static_cast<size_t>(matrix.in_features), out = static_cast<size_t>(matrix.out_features);
  const size_t bytes = in * out * TensorDtypeBytes(view.dtype);
  view.bytes = view.bytes.subspan(static_cast<size_t>(slice.expert) * bytes, bytes);
  WINNOW_RETURN_IF_ERROR(CheckFinite(view, checkpoint.FileOf(slice.tensor)));

  const size_t panel_bytes = PackedBytes(kPanel, matrix.in_features, matrix.dtype);
  std::vector<float> stored, panel(kPanel * in);  // a part of a stored row, and a panel's rows of the matrix
  auto* packed = static_cast<uint8_t*>(destination);
  for (size_t first = 0; first < out; first += kPanel, packed += panel_bytes) {
    const size_t count = std::min<size_t>(kPanel, out - first);
    if (slice.by_output) {
      stored.clear();
      AppendAsF32(view, first * in, count * in, stored);
      PackPanel(kernels, stored.data(), count, matrix, packed);
      continue;
    }
    // Where the panel's outputs lie in a stored row.
    const auto at = [&](size_t n) { return slice.pairs ? n % (out / 2) * 2 + n / (out / 2) : n; };
    size_t low = out, high = 0;
    for (size_t n = first; n < first + count; ++n) {
      low = std::min(low, at(n));
      high = std::max(high, at(n) + 1);
    }
    for (size_t k = 0; k < in; ++k) {
      stored.clear();
      AppendAsF32(view, k * out + low, high - low, stored);
      for (size_t n = first; n < first + count; ++n) panel[(n - first) * in + k] = stored[at(n) - low];
    }
    PackPanel(kernels, panel.data(), count, matrix, packed);
  }
  return absl::OkStatus();
}

}  // namespace winnow
