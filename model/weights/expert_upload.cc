// Experts of CheckpointUpload: their routers, matrices and biases.
#include <algorithm>

#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/device/params/expert_codes.h"
#include "model/weights/checkpoint_upload.h"
#include "model/weights/expert_rows.h"

namespace winnow {

absl::Status CheckpointUpload::FillRouter(const ModelConfig& config, int layer, const device::ExpertMatrices& experts,
                                          float* router) {
  const LayerNames names = LayerNamesOf(config, layer);
  const size_t hidden = config.hidden_size;
  std::vector<float> values;
  const auto append = [&](const std::string& projection, size_t rows) -> absl::Status {
    WINNOW_ASSIGN_OR_RETURN(const StoredWeight weight,
                            StoredWeight::Open(checkpoint_, quantization_, projection + ".weight", rows, hidden));
    WINNOW_RETURN_IF_ERROR(weight.CheckFinite());
    for (size_t row = 0; row < rows; ++row) weight.AppendAsF32(row, 0, hidden, values);
    return absl::OkStatus();
  };
  WINNOW_RETURN_IF_ERROR(append(names.router, experts.num_experts));
  if (experts.shared_gate) WINNOW_RETURN_IF_ERROR(append(names.shared_gate, 1));
  std::copy(values.begin(), values.end(), router);
  return absl::OkStatus();
}

absl::Status CheckpointUpload::FillExperts(const ModelConfig& config, int layer,
                                           const device::ExpertMatrices& experts) {
  const LayerNames names = LayerNamesOf(config, layer);
  const size_t hidden = config.hidden_size, width = experts.intermediate_size;
  const size_t shared_width = width * experts.num_shared;
  const size_t matrix_bytes = width * hidden * sizeof(uint16_t);
  const auto of = [&](const void* matrices, size_t number) {
    return const_cast<std::byte*>(static_cast<const std::byte*>(matrices)) + number * matrix_bytes;
  };
  const auto weight = [](const std::string& projection) { return projection + ".weight"; };
  if (!names.fused_down.empty()) return FillFusedExperts(names, experts);
  for (int i = 0; i < experts.num_experts; ++i) {
    const LayerNames::Expert& expert = names.experts[static_cast<size_t>(i)];
    WINNOW_RETURN_IF_ERROR(Upload({{weight(expert.gate_up[0]), width, hidden, 0, width, 0, hidden},
                                   {weight(expert.gate_up[1]), width, hidden, 0, width, 0, hidden}},
                                  of(experts.gate_up, 2 * static_cast<size_t>(i))));
    WINNOW_RETURN_IF_ERROR(
        Upload({{weight(expert.down), hidden, width, 0, hidden, 0, width}}, of(experts.down, static_cast<size_t>(i))));
  }
  // The shared expert is as wide as several: its outputs, or inputs, are cut.
  for (int i = 0; i < experts.num_shared; ++i) {
    const size_t number = static_cast<size_t>(experts.num_experts) + i, first = i * width;
    WINNOW_RETURN_IF_ERROR(Upload({{weight(names.gate_up[0]), shared_width, hidden, first, width, 0, hidden},
                                   {weight(names.gate_up[1]), shared_width, hidden, first, width, 0, hidden}},
                                  of(experts.gate_up, 2 * number)));
    WINNOW_RETURN_IF_ERROR(
        Upload({{weight(names.down), hidden, shared_width, 0, hidden, first, width}}, of(experts.down, number)));
  }
  return absl::OkStatus();
}

absl::Status CheckpointUpload::FillFusedExperts(const LayerNames& names, const device::ExpertMatrices& experts) {
  const size_t hidden = experts.hidden_size, width = experts.intermediate_size;
  for (int i = 0; i < experts.num_experts; ++i) {
    const ExpertRowSource gate_up{{.tensor = names.fused_gate_up, .expert = i, .pairs = true}, 2 * width, hidden};
    const ExpertRowSource down{{.tensor = names.fused_down, .expert = i}, hidden, width};
    if (experts.mxfp4) {
      WINNOW_RETURN_IF_ERROR(UploadExpertCodes(gate_up, experts.gate_up, experts.gate_up_scales));
      WINNOW_RETURN_IF_ERROR(UploadExpertCodes(down, experts.down, experts.down_scales));
    } else {
      WINNOW_RETURN_IF_ERROR(UploadExpertRows(gate_up, experts.gate_up));
      WINNOW_RETURN_IF_ERROR(UploadExpertRows(down, experts.down));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointUpload::UploadExpertRows(const ExpertRowSource& source, const void* matrices) {
  const size_t row_bytes = source.in_features * sizeof(uint16_t), at_once = kPinnedBytes / row_bytes;
  auto* const bounce = static_cast<uint16_t*>(pinned_->data());
  auto* to = static_cast<std::byte*>(const_cast<void*>(matrices)) +
             static_cast<size_t>(source.slice.expert) * source.out_features * row_bytes;
  WINNOW_CHECK(at_once >= 1);
  for (size_t done = 0; done < source.out_features; done += at_once) {
    const size_t rows = std::min(at_once, source.out_features - done);
    WINNOW_RETURN_IF_ERROR(CopyExpertRows(checkpoint_, source, done, rows, bounce));
    device_.CopyAsync(to + done * row_bytes, bounce, rows * row_bytes, stream_);
    WINNOW_RETURN_IF_ERROR(device_.Synchronize(stream_));
  }
  return absl::OkStatus();
}

absl::Status CheckpointUpload::UploadExpertCodes(const ExpertRowSource& source, const void* matrices,
                                                 const uint8_t* scales) {
  const size_t code_bytes = source.in_features / 2, scale_bytes = source.in_features / device::kExpertBlock;
  const size_t first = static_cast<size_t>(source.slice.expert) * source.out_features;
  const size_t at_once = kPinnedBytes / (code_bytes + scale_bytes);
  auto* const bounce = static_cast<uint8_t*>(pinned_->data());
  auto* const to = static_cast<uint8_t*>(const_cast<void*>(matrices)) + first * code_bytes;
  auto* const scales_to = const_cast<uint8_t*>(scales) + first * scale_bytes;
  WINNOW_CHECK(at_once >= 1);
  for (size_t done = 0; done < source.out_features; done += at_once) {
    const size_t rows = std::min(at_once, source.out_features - done);
    uint8_t* const scale_bounce = bounce + rows * code_bytes;
    WINNOW_RETURN_IF_ERROR(CopyExpertCodes(checkpoint_, source, done, rows, bounce, scale_bounce));
    device_.CopyAsync(to + done * code_bytes, bounce, rows * code_bytes, stream_);
    device_.CopyAsync(scales_to + done * scale_bytes, scale_bounce, rows * scale_bytes, stream_);
    WINNOW_RETURN_IF_ERROR(device_.Synchronize(stream_));
  }
  return absl::OkStatus();
}

absl::Status CheckpointUpload::FillExpertBiases(const LayerNames& names, const device::ExpertMatrices& experts,
                                                const VectorPlace& place) {
  const size_t width = experts.intermediate_size, all = experts.num_experts;
  WINNOW_RETURN_IF_ERROR(AppendVector(names.router + ".bias", 0, all, place(experts.router_bias)));
  float* const gate_up = place(experts.gate_up_bias);
  WINNOW_RETURN_IF_ERROR(AppendVector(names.fused_gate_up + "_bias", 0, all * 2 * width, gate_up));
  for (size_t expert = 0; expert < all; ++expert) {  // stored in turn
    float* const of = gate_up + expert * 2 * width;
    const std::vector<float> stored(of, of + 2 * width);
    for (size_t i = 0; i < 2 * width; ++i) of[i % 2 * width + i / 2] = stored[i];
  }
  return AppendVector(names.fused_down + "_bias", 0, all * experts.hidden_size, place(experts.down_bias));
}

}  // namespace winnow
