#include "common/model/quantized/stored_weight.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/fp8.h"
#include "common/base/status.h"
#include "common/model/model_tensors.h"
#include "common/model/tensor_elements.h"

namespace winnow {
namespace {

// AWQ's kernels unpack a word in two halves: where output i of eight lies in it.
constexpr int kAwqNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};

uint32_t WordAt(const TensorView& tensor, uint64_t index) {
  uint32_t word = 0;
  std::memcpy(&word, tensor.bytes.data() + index * sizeof(word), sizeof(word));
  return word;
}

uint32_t Field(uint32_t word, uint64_t index, int bits) {
  return word >> (index * static_cast<uint64_t>(bits)) & ((1u << bits) - 1);
}

}  // namespace

Dtype StoredWeight::dtype() const {
  if (is_plain()) return *WeightDtype(values_.dtype);
  if (format_ == Format::kFp8) return Dtype::kF8;
  return bits_ == 8 ? Dtype::kI8 : Dtype::kI4;
}

absl::Status StoredWeight::CheckFinite() const {
  if (is_plain()) return winnow::CheckFinite(values_, file_);
  WINNOW_RETURN_IF_ERROR(winnow::CheckFinite(scales_, file_));
  if (format_ != Format::kFp8) return absl::OkStatus();
  const auto nan =
      std::find_if(values_.bytes.begin(), values_.bytes.end(), [](uint8_t code) { return (code & 0x7f) == 0x7f; });
  if (nan == values_.bytes.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(AbslSv(file_), ": tensor ", QuotedName(values_.name),
                                                 " is not finite (NaN) at element ", nan - values_.bytes.begin()));
}

void StoredWeight::Codes(uint64_t first, uint64_t count, uint8_t* codes) const {
  const uint64_t per_word = 32 / static_cast<uint64_t>(bits_);
  const auto place = [&](uint64_t n, uint64_t k) -> uint8_t& {
    return codes[n * inputs_ + (position_.empty() ? k : position_[k])];
  };
  switch (format_) {
    case Format::kNone:
    case Format::kMxfp4:
      WINNOW_CHECK(false);
      return;
    case Format::kFp8:
    case Format::kInt8: {
      const uint8_t sign = format_ == Format::kInt8 ? 0x80 : 0;
      for (uint64_t n = 0; n < count; ++n) {
        const uint8_t* row = values_.bytes.data() + (first + n) * inputs_;
        if (sign == 0 && position_.empty()) {
          std::memcpy(codes + n * inputs_, row, inputs_);
          continue;
        }
        for (uint64_t k = 0; k < inputs_; ++k) place(n, k) = row[k] ^ sign;
      }
      return;
    }
    case Format::kGptq:
      for (uint64_t word_row = 0; word_row * per_word < inputs_; ++word_row) {
        for (uint64_t n = 0; n < count; ++n) {
          const uint32_t word = WordAt(values_, word_row * outputs_ + first + n);
          for (uint64_t i = 0; i < per_word && word_row * per_word + i < inputs_; ++i) {
            place(n, word_row * per_word + i) = static_cast<uint8_t>(Field(word, i, bits_));
          }
        }
      }
      return;
    case Format::kAwq:
      for (uint64_t k = 0; k < inputs_; ++k) {
        for (uint64_t n = 0; n < count; ++n) {
          const uint32_t word = WordAt(values_, k * (outputs_ / 8) + (first + n) / 8);
          place(n, k) = static_cast<uint8_t>(Field(word, kAwqNibble[(first + n) % 8], 4));
        }
      }
      return;
    case Format::kPacked: {
      const uint64_t words = (inputs_ + per_word - 1) / per_word;
      for (uint64_t n = 0; n < count; ++n) {
        for (uint64_t k = 0; k < inputs_; ++k) {
          const uint32_t word = WordAt(values_, (first + n) * words + k / per_word);
          place(n, k) = static_cast<uint8_t>(Field(word, k % per_word, bits_));
        }
      }
      return;
    }
  }
}

float StoredWeight::Scale(uint64_t output, uint64_t group) const {
  // GPTQ and AWQ keep the scales of a group together, the others those of an output.
  const bool by_group = format_ == Format::kGptq || format_ == Format::kAwq;
  const uint64_t row = scale_rows_ == 0 ? 0 : output / scale_rows_;
  return ElementAsF32(scales_, by_group ? group * outputs_ + output : row * num_groups() + group);
}

int StoredWeight::Zero(uint64_t output, uint64_t group) const {
  if (!zeros_.has_value()) return zero_offset_;
  const uint64_t per_word = 32 / static_cast<uint64_t>(bits_);
  const uint64_t words = (outputs_ + per_word - 1) / per_word;
  if (format_ == Format::kGptq) {
    return static_cast<int>(Field(WordAt(*zeros_, group * words + output / per_word), output % per_word, bits_)) +
           zero_offset_;
  }
  if (format_ == Format::kAwq) {
    return static_cast<int>(Field(WordAt(*zeros_, group * words + output / 8), kAwqNibble[output % 8], 4)) +
           zero_offset_;
  }
  if (zeros_->dtype == TensorDtype::kI8) {
    return static_cast<int8_t>(zeros_->bytes[output * num_groups() + group]) + (1 << (bits_ - 1));
  }
  return static_cast<int>(Field(WordAt(*zeros_, output / per_word * num_groups() + group), output % per_word, bits_));
}

void StoredWeight::Scales(uint64_t first, uint64_t count, float* scales, int16_t* zeros) const {
  for (uint64_t n = 0; n < count; ++n) {
    for (uint64_t group = 0; group < num_groups(); ++group) {
      *scales++ = Scale(first + n, group);
      *zeros++ = static_cast<int16_t>(format_ == Format::kFp8 ? 0 : Zero(first + n, group));
    }
  }
}

void StoredWeight::AppendAsF32(uint64_t output, uint64_t first, uint64_t count, std::vector<float>& out) const {
  if (is_plain()) return winnow::AppendAsF32(values_, output * inputs_ + first, count, out);
  std::vector<uint8_t> codes(inputs_);
  std::vector<float> scales(num_groups());
  std::vector<int16_t> zeros(num_groups());
  Codes(output, 1, codes.data());
  Scales(output, 1, scales.data(), zeros.data());
  for (uint64_t k = first; k < first + count; ++k) {
    const uint64_t at = position_.empty() ? k : position_[k];
    const uint64_t group = at / static_cast<uint64_t>(group_size_);
    const float value = format_ == Format::kFp8 ? Fp8ToF32(codes[at]) : static_cast<float>(codes[at] - zeros[group]);
    out.push_back(value * scales[group]);
  }
}

}  // namespace winnow
