#include "model/weights/device_forms.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "common/model/model_tensors.h"
#include "common/model/quantized/stored_weight.h"

namespace winnow {
namespace {

// Of a weight that is not plain, what decides in which form a GPU can hold it.
struct StoredForm {
  Dtype dtype = Dtype::kF8;
  size_t group_size = 0;  // inputs; 0: all
  size_t scale_rows = 1;  // outputs that share a scale; 0: all
};

// nullopt: plain, or in an order that GPUs do not read.
std::optional<StoredForm> StoredFormOf(const Checkpoint& checkpoint, const WeightQuantization& quantization,
                                       const WeightPiece& piece) {
  const absl::StatusOr<StoredWeight> weight =
      StoredWeight::Open(checkpoint, quantization, piece.tensor, piece.tensor_rows, piece.tensor_columns);
  if (!weight.ok() || weight->is_plain() || !weight->input_order().empty()) return std::nullopt;
  return StoredForm{.dtype = weight->dtype(),
                    .group_size = weight->num_groups() == 1 ? 0 : static_cast<size_t>(weight->group_size()),
                    .scale_rows = weight->scale_rows()};
}

std::optional<StoredForm> ConfiguredForm(const WeightQuantization& quantization, const WeightPiece& piece) {
  using Format = WeightQuantization::Format;
  const bool fp8 = quantization.format == Format::kFp8;
  if (quantization.format == Format::kMxfp4) return std::nullopt;  // of experts alone
  if (quantization.format == Format::kNone || (!fp8 && quantization.bits != 4)) return std::nullopt;
  const auto group = static_cast<size_t>(quantization.block_columns);
  return StoredForm{.dtype = fp8 ? Dtype::kF8 : Dtype::kI4,
                    .group_size = group >= piece.tensor_columns ? 0 : group,
                    .scale_rows = static_cast<size_t>(quantization.block_rows)};
}

// The largest of a GPU's groups that divides those of a weight and the inputs of a shard; 0: none.
int DeviceGroup(size_t group_size, const WeightPiece& piece) {
  const size_t cut = piece.columns == piece.tensor_columns ? 0 : piece.columns;
  const auto* const found = std::find_if(
      std::begin(device::kMatmulGroups), std::end(device::kMatmulGroups),
      [&](int group) { return group_size % static_cast<size_t>(group) == 0 && cut % static_cast<size_t>(group) == 0; });
  return found == std::end(device::kMatmulGroups) ? 0 : *found;
}

class FormChoice {
 public:
  FormChoice(const Checkpoint* checkpoint, const WeightQuantization& quantization, Dtype plain)
      : checkpoint_(checkpoint), quantization_(quantization), plain_(plain) {}

  DeviceForm Of(const std::vector<WeightPiece>& pieces) const {
    const DeviceForm plain{.dtype = plain_};
    if (quantization_.format == WeightQuantization::Format::kNone || pieces.empty()) return plain;
    const std::optional<StoredForm> first = FormOf(pieces.front());
    if (!first.has_value() || (first->dtype != Dtype::kF8 && first->dtype != Dtype::kI4)) return plain;
    DeviceForm form{.dtype = first->dtype, .is_stored = true};
    if (HasGroups(*first)) form.group_size = device::kMatmulGroups[0];
    for (const WeightPiece& piece : pieces) {
      const std::optional<StoredForm> stored = FormOf(piece);
      if (!stored.has_value() || stored->dtype != form.dtype || piece.columns % 32 != 0) return plain;
      if (HasGroups(*stored) != HasGroups(*first)) return plain;
      if (!HasGroups(*stored)) continue;
      const int group = DeviceGroup(stored->group_size, piece);
      if (group == 0 || (form.dtype == Dtype::kF8 && !SharesScales(*stored, piece, pieces))) return plain;
      form.group_size = std::min(form.group_size, group);
    }
    return form;
  }

 private:
  std::optional<StoredForm> FormOf(const WeightPiece& piece) const {
    return checkpoint_ == nullptr ? ConfiguredForm(quantization_, piece)
                                  : StoredFormOf(*checkpoint_, quantization_, piece);
  }

  // Scales of whole rows have a form of their own for fp8 alone.
  static bool HasGroups(const StoredForm& stored) { return stored.dtype == Dtype::kI4 || stored.group_size > 0; }

  // Whether each 16 outputs of the stack share the scales of fp8 groups.
  static bool SharesScales(const StoredForm& stored, const WeightPiece& piece, const std::vector<WeightPiece>& pieces) {
    const bool is_whole = pieces.size() == 1 && piece.rows == piece.tensor_rows;
    return stored.scale_rows % device::kF8ScaleOutputs == 0 && (is_whole || piece.rows % device::kF8ScaleOutputs == 0);
  }

  const Checkpoint* const checkpoint_;
  const WeightQuantization& quantization_;
  const Dtype plain_;
};

}  // namespace

DeviceForms ChooseDeviceForms(const Checkpoint* checkpoint, const ModelConfig& part, WeightShard shard, Dtype plain) {
  const FormChoice choice(checkpoint, part.quantization, plain);
  DeviceForms forms{.layers = {}, .lm_head = {.dtype = plain}};
  for (int layer = 0; layer < part.num_layers; ++layer) {
    const LayerPieces pieces = PiecesOfLayer(part, shard, layer);
    forms.layers.push_back({.qkv = choice.Of(pieces.qkv),
                            .o = choice.Of(pieces.o),
                            .gate_up = choice.Of(pieces.gate_up),
                            .down = choice.Of(pieces.down)});
  }
  if (checkpoint != nullptr && !part.tie_word_embeddings) {
    forms.lm_head = choice.Of(LmHeadPieces(part, shard));
  }
  return forms;
}

size_t MatrixBytes(const device::DeviceMatrix& matrix) {
  const size_t out = matrix.out_features, in = matrix.in_features;
  size_t scales = matrix.dtype == Dtype::kBf16 ? 0 : out;
  if (matrix.group_size > 0) scales = out * ((in + matrix.group_size - 1) / matrix.group_size);
  if (matrix.group_size > 0 && matrix.dtype == Dtype::kF8) scales /= device::kF8ScaleOutputs;
  return DtypeBytes(matrix.dtype, out * in) + scales * sizeof(float);
}

}  // namespace winnow
