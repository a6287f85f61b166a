#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

#include "absl/strings/match.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/model/model_tensors.h"
#include "common/model/quantized/mxfp4.h"
#include "common/model/quantized/stored_weight.h"

namespace winnow {
namespace {

// Fixed-size blocks, so that the compiler vectorises the inner loop.
constexpr size_t kBlock = 1024;

// Index of the first element whose exponent bits are all ones.
template <typename Word, Word kExponentMask>
std::optional<uint64_t> FirstNonFinite(std::span<const uint8_t> bytes) {
  const size_t count = bytes.size() / sizeof(Word);
  std::array<Word, kBlock> block;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = std::min(kBlock, count - begin);
    if (size < kBlock) block.fill(0);
    std::memcpy(block.data(), bytes.data() + begin * sizeof(Word), size * sizeof(Word));
    Word bad = 0;
    for (size_t i = 0; i < kBlock; ++i) bad |= static_cast<Word>((block[i] & kExponentMask) == kExponentMask);
    if (bad == 0) continue;
    for (size_t i = 0; i < size; ++i) {
      if ((block[i] & kExponentMask) == kExponentMask) return begin + i;
    }
  }
  return std::nullopt;
}

std::optional<uint64_t> FirstNonFinite(const TensorView& tensor, Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return FirstNonFinite<uint32_t, 0x7F800000>(tensor.bytes);
    case Dtype::kBf16:
      return FirstNonFinite<uint16_t, 0x7F80>(tensor.bytes);
    case Dtype::kF16:
      return FirstNonFinite<uint16_t, 0x7C00>(tensor.bytes);
    case Dtype::kI8:
    case Dtype::kI4:
    case Dtype::kF8:
      break;
  }
  return std::nullopt;
}

absl::Status CheckExpected(const Checkpoint& checkpoint, const ModelConfig& config, const ExpectedTensor& expected) {
  if (IsLinearWeight(expected)) {
    WINNOW_ASSIGN_OR_RETURN(
        const StoredWeight weight,
        StoredWeight::Open(checkpoint, config.quantization, expected.name, expected.shape[0], expected.shape[1]));
    return weight.CheckFinite();
  }
  WINNOW_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint.Find(expected.name));
  if (!expected.is_bytes) return CheckFinite(tensor, checkpoint.FileOf(expected.name));
  // Every block is finite, and a scale unless it says that it is not.
  const bool scales = absl::EndsWith(expected.name, "_scales");
  return scales ? CheckMxfp4Scales(tensor, checkpoint.FileOf(expected.name)) : absl::OkStatus();
}

}  // namespace

absl::Status CheckMxfp4Scales(const TensorView& tensor, std::string_view file) {
  const auto nan = std::find(tensor.bytes.begin(), tensor.bytes.end(), kMxfp4Nan);
  if (nan == tensor.bytes.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(AbslSv(file), ": tensor ", QuotedName(tensor.name),
                                                 " is not finite (NaN) at element ", nan - tensor.bytes.begin()));
}

absl::Status CheckFinite(const TensorView& tensor, std::string_view file) {
  const std::optional<Dtype> dtype = WeightDtype(tensor.dtype);
  WINNOW_CHECK(dtype.has_value());
  const std::optional<uint64_t> index = FirstNonFinite(tensor, *dtype);
  if (!index.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(AbslSv(file), ": tensor ", QuotedName(tensor.name),
                                                 " is not finite (NaN or infinity) at element ", *index));
}

absl::Status CheckWeightsFinite(const Checkpoint& checkpoint, const ModelConfig& config, int num_threads) {
  const std::vector<ExpectedTensor> tensors = ExpectedTensors(config);
  std::vector<absl::Status> results(tensors.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < tensors.size(); i = next++) {
      results[i] = CheckExpected(checkpoint, config, tensors[i]);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 1; i < num_threads; ++i) threads.emplace_back(work);
    work();
  }
  for (const absl::Status& result : results) WINNOW_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

}  // namespace winnow
