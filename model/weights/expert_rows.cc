#include "model/weights/expert_rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/base/status.h"
#include "common/model/model_tensors.h"
#include "common/model/quantized/mxfp4.h"
#include "common/model/tensor_elements.h"
#include "kernels/device/params/expert_codes.h"
#include "model/weights/bf16.h"

namespace winnow {
namespace {

// Where row n of the matrix lies among the stored outputs.
size_t StoredOutput(const ExpertRowSource& source, size_t n) {
  const size_t half = source.out_features / 2;
  return source.slice.pairs ? n % half * 2 + n / half : n;
}

}  // namespace

absl::Status CopyExpertRows(const Checkpoint& checkpoint, const ExpertRowSource& source, size_t first, size_t rows,
                            uint16_t* out) {
  WINNOW_ASSIGN_OR_RETURN(TensorView view, checkpoint.Find(source.slice.tensor));
  const size_t in = source.in_features, all = source.out_features;
  const size_t bytes = in * all * TensorDtypeBytes(view.dtype);
  view.bytes = view.bytes.subspan(static_cast<size_t>(source.slice.expert) * bytes, bytes);
  if (first == 0) WINNOW_RETURN_IF_ERROR(CheckFinite(view, checkpoint.FileOf(source.slice.tensor)));
  std::vector<size_t> stored(rows);
  for (size_t i = 0; i < rows; ++i) stored[i] = StoredOutput(source, first + i);
  const auto [low, high] = std::minmax_element(stored.begin(), stored.end());
  // Some inputs at a time, so that what is written to the rows stays in the cache.
  constexpr size_t kInputs = 32;
  std::vector<float> values;
  const size_t width = *high - *low + 1;
  for (size_t begin = 0; begin < in; begin += kInputs) {
    const size_t count = std::min(kInputs, in - begin);
    values.clear();
    for (size_t k = begin; k < begin + count; ++k) AppendAsF32(view, k * all + *low, width, values);
    for (size_t i = 0; i < rows; ++i) {
      const float* const from = values.data() + (stored[i] - *low);
      for (size_t k = 0; k < count; ++k) out[i * in + begin + k] = RoundToBf16(from[k * width]);
    }
  }
  return absl::OkStatus();
}

absl::Status CopyExpertCodes(const Checkpoint& checkpoint, const ExpertRowSource& source, size_t first, size_t rows,
                             uint8_t* codes, uint8_t* scales) {
  const std::string scales_name = source.slice.tensor + "_scales";
  WINNOW_ASSIGN_OR_RETURN(const TensorView blocks, checkpoint.Find(source.slice.tensor + "_blocks"));
  WINNOW_ASSIGN_OR_RETURN(const TensorView stored_scales, checkpoint.Find(scales_name));
  if (source.slice.expert == 0 && first == 0) {
    WINNOW_RETURN_IF_ERROR(CheckMxfp4Scales(stored_scales, checkpoint.FileOf(scales_name)));
  }
  const size_t in = source.in_features, row_scales = in / kMxfp4Block;
  for (size_t i = 0; i < rows; ++i) {
    const size_t row = static_cast<size_t>(source.slice.expert) * source.out_features + StoredOutput(source, first + i);
    const uint8_t* const from = blocks.bytes.data() + row * (in / 2);
    for (size_t byte = 0; byte < in / 2; byte += sizeof(uint32_t)) {
      uint32_t word = 0;
      std::memcpy(&word, from + byte, sizeof(word));
      word = device::ExpertCodeWord(word);
      std::memcpy(codes + i * (in / 2) + byte, &word, sizeof(word));
    }
    for (size_t block = 0; block < row_scales; ++block) {
      const uint8_t scale = scales[i * row_scales + block] = stored_scales.bytes[row * row_scales + block];
      if (scale <= device::kGreatestExpertScale) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(AbslSv(checkpoint.FileOf(scales_name)), ": a scale of ", QuotedName(scales_name), " is 2^",
                       scale - 127, ", and GPUs hold scales up to 2^", device::kGreatestExpertScale - 127));
    }
  }
  return absl::OkStatus();
}

}  // namespace winnow
