#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/model/checkpoint.h"
#include "common/model/quantized/weight_quantization.h"

namespace winnow {

// The weight [outputs, inputs] of a linear layer as a checkpoint stores it: plain numbers, or codes with scales. Which
// of them is seen from its tensors: a quantised checkpoint may leave any layer plain. Borrows the checkpoint.
//
// Codes are given as unsigned bytes, with zeros to match: weight = (code - zero) * scale, or for fp8 the value of the
// e4m3 code * scale. A group is that many inputs, in input_order, with one scale for each output.
class StoredWeight {
 public:
  // `name` is that of the plain tensor ("model.layers.0.mlp.up_proj.weight"). Checks shapes, dtypes and that an input
  // order fits its groups. INVALID_ARGUMENT names tensor, file and what was expected.
  static absl::StatusOr<StoredWeight> Open(const Checkpoint& checkpoint, const WeightQuantization& quantization,
                                           std::string_view name, uint64_t outputs, uint64_t inputs);

  uint64_t outputs() const { return outputs_; }
  uint64_t inputs() const { return inputs_; }
  bool is_plain() const { return format_ == WeightQuantization::Format::kNone; }
  const TensorView& plain() const { return values_; }
  // Of a plain weight its element type; else kF8, kI8 or kI4.
  Dtype dtype() const;
  int group_size() const { return group_size_; }  // of codes: a multiple of 32; at least `inputs` if there is one group
  size_t num_groups() const { return (inputs_ + group_size_ - 1) / group_size_; }
  uint64_t scale_rows() const { return scale_rows_; }  // outputs that share the scales of their groups; 0: all
  // Group order: packed input i is input_order()[i] of the layer. Empty: as they are.
  const std::vector<uint32_t>& input_order() const { return input_order_; }
  const std::vector<std::string>& tensors() const { return tensors_; }  // all that are read
  std::string_view file() const { return file_; }                       // of the values

  // INVALID_ARGUMENT naming file, tensor and index of the first weight or scale that is NaN or infinite.
  absl::Status CheckFinite() const;
  // Codes of outputs [first, first + count), [count, inputs] in input_order.
  void Codes(uint64_t first, uint64_t count, uint8_t* codes) const;
  // [count, num_groups]; zeros are 0 for fp8.
  void Scales(uint64_t first, uint64_t count, float* scales, int16_t* zeros) const;
  // Appends inputs [first, first + count) of one output, in the layer's order, as f32: exact for plain weights.
  void AppendAsF32(uint64_t output, uint64_t first, uint64_t count, std::vector<float>& out) const;

 private:
  class Opener;
  using Format = WeightQuantization::Format;

  float Scale(uint64_t output, uint64_t group) const;
  int Zero(uint64_t output, uint64_t group) const;

  uint64_t outputs_ = 0;
  uint64_t inputs_ = 0;
  Format format_ = Format::kNone;
  int bits_ = 0;
  int group_size_ = 0;
  int zero_offset_ = 0;  // added to stored zeros, or the zero where none are stored
  // Outputs that share a row of scales; 0: all.
  uint64_t scale_rows_ = 1;
  std::string_view file_;
  TensorView values_;
  TensorView scales_;
  std::optional<TensorView> zeros_;
  std::vector<uint32_t> input_order_;
  std::vector<uint32_t> position_;  // of an input in input_order_
  std::vector<std::string> tensors_;
};

}  // namespace winnow
