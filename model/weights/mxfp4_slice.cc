#include "model/weights/mxfp4_slice.h"

#include <algorithm>
#include <vector>

#include "common/base/status.h"
#include "common/model/model_tensors.h"
#include "common/model/quantized/mxfp4.h"
#include "kernels/quantized_pack.h"

namespace winnow {

absl::Status PackMxfp4Slice(const Checkpoint& checkpoint, const ExpertSlice& slice, const PackedMatrix& matrix,
                            void* destination) {
  const std::string scales_name = slice.tensor + "_scales";
  WINNOW_ASSIGN_OR_RETURN(const TensorView blocks, checkpoint.Find(slice.tensor + "_blocks"));
  WINNOW_ASSIGN_OR_RETURN(const TensorView scales, checkpoint.Find(scales_name));
  if (slice.expert == 0) WINNOW_RETURN_IF_ERROR(CheckMxfp4Scales(scales, checkpoint.FileOf(scales_name)));
  const auto in = static_cast<size_t>(matrix.in_features), out = static_cast<size_t>(matrix.out_features);
  const size_t row_bytes = in / 2, groups = in / kMxfp4Block, first_row = static_cast<size_t>(slice.expert) * out;

  std::vector<uint8_t> codes(kPanel * in), exponents(kPanel * groups);
  auto* packed = static_cast<uint8_t*>(destination);
  for (size_t first = 0; first < out; first += kPanel, packed += PanelBytes(matrix)) {
    const size_t count = std::min<size_t>(kPanel, out - first);
    for (size_t i = 0; i < count; ++i) {
      const size_t n = first + i, row = first_row + (slice.pairs ? n % (out / 2) * 2 + n / (out / 2) : n);
      const uint8_t* const pairs = blocks.bytes.data() + row * row_bytes;
      for (size_t byte = 0; byte < row_bytes; ++byte) {
        codes[i * in + 2 * byte] = pairs[byte] & 15;
        codes[i * in + 2 * byte + 1] = pairs[byte] >> 4;
      }
      std::copy_n(scales.bytes.data() + row * groups, groups, exponents.data() + i * groups);
    }
    PackQuantizedPanel({.codes = codes.data(),
                        .exponents = exponents.data(),
                        .num_outputs = static_cast<int>(count),
                        .matrix = matrix,
                        .packed = packed});
  }
  return absl::OkStatus();
}

}  // namespace winnow
