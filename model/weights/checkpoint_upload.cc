#include "model/weights/checkpoint_upload.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/model/layer_names.h"
#include "common/model/model_tensors.h"
#include "common/model/quantized/stored_weight.h"
#include "common/model/tensor_elements.h"

namespace winnow {
namespace {

constexpr size_t kPinnedBytes = size_t{64} << 20;

uint16_t RoundToBf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// One row's [first_column, first_column + columns) as bf16; what is wider or quantised is rounded to nearest even.
void ConvertRow(const StoredWeight& weight, size_t row, size_t first_column, size_t columns,
                std::vector<float>& scratch, uint16_t* out) {
  if (weight.is_plain() && weight.dtype() == Dtype::kBf16) {
    std::memcpy(out, weight.plain().bytes.data() + (row * weight.inputs() + first_column) * 2, columns * 2);
    return;
  }
  scratch.clear();
  weight.AppendAsF32(row, first_column, columns, scratch);
  std::transform(scratch.begin(), scratch.end(), out, RoundToBf16);
}

}  // namespace

absl::Status CheckpointUpload::Fill(DeviceWeights& weights) {
  const ModelConfig& part = weights.config_;
  const bool all = weights.options_.parts == WeightParts::kAll;
  const size_t shard = weights.options_.shard.index, shards = weights.options_.shard.count;
  const size_t hidden = part.hidden_size, vocab = part.vocab_size, intermediate = part.intermediate_size;
  const size_t q = part.q_features(), kv = part.kv_features();
  WINNOW_ASSIGN_OR_RETURN(staging_, NewStaging(device_, weights));
  WINNOW_ASSIGN_OR_RETURN(pinned_, device_.AllocatePinned(kPinnedBytes));
  WINNOW_RETURN_IF_ERROR(FillVectors(weights));
  for (int l = 0; l < part.num_layers; ++l) {
    const DeviceLayerWeights& layer = weights.layer(l);
    const auto rows = [&](const char* name, size_t count, size_t columns) {
      return Piece{LayerTensor(l, name), count * shards, columns, shard * count, count, 0, columns};
    };
    const auto columns = [&](const char* name, size_t count) {
      return Piece{LayerTensor(l, name), hidden, count * shards, 0, hidden, shard * count, count};
    };
    std::vector<Piece> qkv = {rows("self_attn.q_proj.weight", q, hidden)};
    if (all) {
      qkv.push_back(rows("self_attn.k_proj.weight", kv, hidden));
      qkv.push_back(rows("self_attn.v_proj.weight", kv, hidden));
    }
    WINNOW_RETURN_IF_ERROR(FillMatrix(qkv, layer.qkv));
    if (!all) continue;
    WINNOW_RETURN_IF_ERROR(FillMatrix({columns("self_attn.o_proj.weight", q)}, layer.o));
    if (layer.is_sparse()) {
      WINNOW_RETURN_IF_ERROR(FillExperts(part, l, layer.experts));
      continue;
    }
    WINNOW_RETURN_IF_ERROR(FillMatrix(
        {rows("mlp.gate_proj.weight", intermediate, hidden), rows("mlp.up_proj.weight", intermediate, hidden)},
        layer.gate_up));
    WINNOW_RETURN_IF_ERROR(FillMatrix({columns("mlp.down_proj.weight", intermediate)}, layer.down));
  }
  if (all) {
    WINNOW_RETURN_IF_ERROR(
        Upload({{std::string(kEmbeddingTensor), vocab, hidden, 0, vocab, 0, hidden}}, weights.embedding_));
    if (part.tie_word_embeddings) {
      // Does nothing where the two share memory.
      const size_t first = weights.lm_head_first() * hidden * sizeof(uint16_t);
      table_.matmul->pack(stream_, static_cast<std::byte*>(weights.embedding_) + first, weights.lm_head_);
    } else {
      WINNOW_RETURN_IF_ERROR(
          FillMatrix({{std::string(kLmHeadTensor), vocab, hidden, static_cast<size_t>(weights.lm_head_first()),
                       static_cast<size_t>(weights.lm_head_.out_features), 0, hidden}},
                     weights.lm_head_));
    }
  }
  return device_.Synchronize(stream_);
}

absl::Status CheckpointUpload::FillRouter(const ModelConfig& config, int layer, const cuda::ExpertMatrices& experts,
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

absl::Status CheckpointUpload::FillExperts(const ModelConfig& config, int layer, const cuda::ExpertMatrices& experts) {
  const LayerNames names = LayerNamesOf(config, layer);
  const size_t hidden = config.hidden_size, width = experts.intermediate_size;
  const size_t shared_width = width * experts.num_shared;
  const size_t matrix_bytes = width * hidden * sizeof(uint16_t);
  const auto of = [&](const void* matrices, size_t number) {
    return const_cast<std::byte*>(static_cast<const std::byte*>(matrices)) + number * matrix_bytes;
  };
  const auto weight = [](const std::string& projection) { return projection + ".weight"; };
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

absl::Status CheckpointUpload::AppendVector(const std::string& name, size_t first, size_t count, float* out) {
  WINNOW_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint_.Find(name));
  WINNOW_RETURN_IF_ERROR(CheckFinite(tensor, checkpoint_.FileOf(name)));
  std::vector<float> values;
  AppendAsF32(tensor, first, count, values);
  std::copy(values.begin(), values.end(), out);
  return absl::OkStatus();
}

absl::Status CheckpointUpload::FillVectors(DeviceWeights& weights) {
  const ModelConfig& part = weights.config_;
  const bool all = weights.options_.parts == WeightParts::kAll;
  const size_t shard = weights.options_.shard.index;
  const size_t hidden = part.hidden_size, head = part.head_dim, q = part.q_features(), kv = part.kv_features();
  std::vector<float> host(weights.vector_bytes_ / sizeof(float));
  const auto* begin = static_cast<const float*>(weights.memory_->data());
  absl::Status status;
  const auto load = [&](const std::string& name, size_t first, size_t count, const float* to) {
    if (status.ok()) status = AppendVector(name, first, count, host.data() + (to - begin));
  };
  for (int l = 0; l < part.num_layers; ++l) {
    const DeviceLayerWeights& layer = weights.layer(l);
    load(LayerTensor(l, "input_layernorm.weight"), 0, hidden, layer.input_norm);
    if (all) load(LayerTensor(l, "post_attention_layernorm.weight"), 0, hidden, layer.post_attention_norm);
    if (part.qk_norm) load(LayerTensor(l, "self_attn.q_norm.weight"), 0, head, layer.q_norm);
    if (part.qk_norm && all) load(LayerTensor(l, "self_attn.k_norm.weight"), 0, head, layer.k_norm);
    if (layer.is_sparse()) {
      status.Update(FillRouter(part, l, layer.experts, host.data() + (layer.experts.router - begin)));
    }
    if (!part.qkv_bias) continue;
    load(LayerTensor(l, "self_attn.q_proj.bias"), shard * q, q, layer.qkv_bias);
    if (!all) continue;
    load(LayerTensor(l, "self_attn.k_proj.bias"), shard * kv, kv, layer.qkv_bias + q);
    load(LayerTensor(l, "self_attn.v_proj.bias"), shard * kv, kv, layer.qkv_bias + q + kv);
  }
  if (all) load(std::string(kFinalNormTensor), 0, hidden, weights.final_norm_);
  WINNOW_RETURN_IF_ERROR(status);
  device_.CopyAsync(weights.memory_->data(), host.data(), weights.vector_bytes_, stream_);
  return device_.Synchronize(stream_);
}

absl::Status CheckpointUpload::FillMatrix(const std::vector<Piece>& pieces, const cuda::DeviceMatrix& matrix) {
  void* const row_major = StagingOf(matrix, staging_.get());
  WINNOW_RETURN_IF_ERROR(Upload(pieces, row_major));
  table_.matmul->pack(stream_, row_major, matrix);
  return absl::OkStatus();
}

absl::Status CheckpointUpload::Upload(const std::vector<Piece>& pieces, void* to) {
  auto* destination = static_cast<std::byte*>(to);
  auto* bounce = static_cast<uint16_t*>(pinned_->data());
  std::vector<float> scratch;
  for (const Piece& piece : pieces) {
    WINNOW_ASSIGN_OR_RETURN(const StoredWeight weight, StoredWeight::Open(checkpoint_, quantization_, piece.tensor,
                                                                          piece.tensor_rows, piece.tensor_columns));
    WINNOW_RETURN_IF_ERROR(weight.CheckFinite());
    const size_t rows_at_once = kPinnedBytes / (piece.columns * sizeof(uint16_t));
    WINNOW_CHECK(rows_at_once >= 1 && piece.first_row + piece.rows <= piece.tensor_rows &&
                 piece.first_column + piece.columns <= piece.tensor_columns);
    for (size_t done = 0; done < piece.rows; done += rows_at_once) {
      const size_t rows = std::min(rows_at_once, piece.rows - done);
      for (size_t r = 0; r < rows; ++r) {
        ConvertRow(weight, piece.first_row + done + r, piece.first_column, piece.columns, scratch,
                   bounce + r * piece.columns);
      }
      const size_t bytes = rows * piece.columns * sizeof(uint16_t);
      device_.CopyAsync(destination, bounce, bytes, stream_);
      destination += bytes;
      WINNOW_RETURN_IF_ERROR(device_.Synchronize(stream_));
    }
    for (const std::string& name : weight.tensors()) checkpoint_.ReleasePages(name);
  }
  return absl::OkStatus();
}

}  // namespace winnow
