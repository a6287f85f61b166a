#include "model/weights/checkpoint_upload.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/model/layer_names.h"
#include "common/model/model_tensors.h"
#include "common/model/tensor_elements.h"
#include "kernels/device/arena.h"
#include "model/weights/bf16.h"

namespace winnow {
namespace {

// Formats that keep the outputs of an input together are read by columns: few enough that their rows stay in the cache.
constexpr size_t kRowsOfCodes = 256;
constexpr int kMaxI4Zero = 16;

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

size_t NumGroups(const device::DeviceMatrix& matrix) {
  return matrix.group_size == 0 ? 1 : (matrix.in_features + matrix.group_size - 1) / matrix.group_size;
}

// Codes of the piece's columns, row after row.
void CopyCodes(const StoredWeight& weight, const WeightPiece& piece, size_t first_row, size_t rows, uint8_t* out) {
  if (piece.columns == weight.inputs()) return weight.Codes(first_row, rows, out);
  std::vector<uint8_t> whole(rows * weight.inputs());
  weight.Codes(first_row, rows, whole.data());
  for (size_t r = 0; r < rows; ++r) {
    std::memcpy(out + r * piece.columns, whole.data() + r * weight.inputs() + piece.first_column, piece.columns);
  }
}

// Scales and zeros of the matrix's groups in the piece's columns, each of which lies in a group of the weight.
absl::Status AppendScales(const StoredWeight& weight, const WeightPiece& piece, size_t first_row, size_t rows,
                          const device::DeviceMatrix& matrix, std::vector<float>& scales, std::vector<uint8_t>& zeros) {
  const size_t stored = weight.num_groups();
  std::vector<float> row_scales(rows * stored);
  std::vector<int16_t> row_zeros(rows * stored);
  weight.Scales(first_row, rows, row_scales.data(), row_zeros.data());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t group = 0; group < NumGroups(matrix); ++group) {
      const size_t column = piece.first_column + group * static_cast<size_t>(matrix.group_size);
      const size_t from = r * stored + column / static_cast<size_t>(weight.group_size());
      if (row_zeros[from] < 0 || row_zeros[from] > kMaxI4Zero) {
        return absl::InvalidArgumentError(absl::StrCat(AbslSv(weight.file()), ": the zero of output ", first_row + r,
                                                       " and group ", column / static_cast<size_t>(weight.group_size()),
                                                       " of ", QuotedName(piece.tensor), " is ", row_zeros[from],
                                                       " and has to be 0 to ", kMaxI4Zero));
      }
      scales.push_back(row_scales[from]);
      zeros.push_back(static_cast<uint8_t>(row_zeros[from]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckpointUpload::Fill(DeviceWeights& weights) {
  const ModelConfig& part = weights.config_;
  const bool all = weights.options_.parts == WeightParts::kAll;
  WINNOW_ASSIGN_OR_RETURN(staging_, NewStaging(device_, weights));
  WINNOW_ASSIGN_OR_RETURN(pinned_, device_.AllocatePinned(kPinnedBytes));
  WINNOW_RETURN_IF_ERROR(FillVectors(weights));
  for (int l = 0; l < part.num_layers; ++l) {
    const DeviceLayerWeights& layer = weights.layer(l);
    const LayerForms& forms = weights.forms_.layers[static_cast<size_t>(l)];
    LayerPieces pieces = PiecesOfLayer(part, weights.options_.shard, l);
    if (!all) pieces.qkv.resize(1);  // q alone
    WINNOW_RETURN_IF_ERROR(FillMatrix(pieces.qkv, forms.qkv, layer.qkv));
    if (!all) continue;
    WINNOW_RETURN_IF_ERROR(FillMatrix(pieces.o, forms.o, layer.o));
    if (part.latent) WINNOW_RETURN_IF_ERROR(FillLatents(part, l, layer.latent));
    if (layer.is_sparse()) {
      WINNOW_RETURN_IF_ERROR(FillExperts(part, l, layer.experts));
      continue;
    }
    WINNOW_RETURN_IF_ERROR(FillMatrix(pieces.gate_up, forms.gate_up, layer.gate_up));
    WINNOW_RETURN_IF_ERROR(FillMatrix(pieces.down, forms.down, layer.down));
  }
  if (all) {
    const size_t hidden = part.hidden_size, vocab = part.vocab_size;
    WINNOW_RETURN_IF_ERROR(
        Upload({{std::string(kEmbeddingTensor), vocab, hidden, 0, vocab, 0, hidden}}, weights.embedding_));
    if (part.tie_word_embeddings) {
      // Does nothing where the two share memory.
      const size_t first = weights.lm_head_first() * hidden * sizeof(uint16_t);
      table_.matmul->pack(stream_, static_cast<std::byte*>(weights.embedding_) + first, weights.lm_head_);
    } else {
      WINNOW_RETURN_IF_ERROR(
          FillMatrix(LmHeadPieces(part, weights.options_.shard), weights.forms_.lm_head, weights.lm_head_));
    }
  }
  return device_.Synchronize(stream_);
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
  const size_t hidden = part.hidden_size, q = part.q_features(), kv = part.kv_features(), heads = part.num_query_heads;
  const float norm_offset = part.norms_add_one ? 1 : 0;
  std::vector<float> host(weights.vector_bytes_ / sizeof(float));
  const auto* begin = static_cast<const float*>(weights.memory_->data());
  const VectorPlace place = [&](const float* to) { return host.data() + (to - begin); };
  absl::Status status;
  const auto load = [&](const std::string& name, size_t first, size_t count, const float* to) {
    if (status.ok() && !name.empty() && to != nullptr) status = AppendVector(name, first, count, place(to));
  };
  const auto load_norm = [&](const std::string& name, size_t count, const float* to) {
    load(name, 0, count, to);
    for (size_t i = 0; to != nullptr && i < count; ++i) place(to)[i] += norm_offset;
  };
  for (int l = 0; l < part.num_layers; ++l) {
    const DeviceLayerWeights& layer = weights.layer(l);
    const LayerNames names = LayerNamesOf(part, l);
    load_norm(names.attention_norm, hidden, layer.input_norm);
    load_norm(names.attention_post_norm, hidden, layer.attention_post_norm);
    load_norm(names.mlp_norm, hidden, layer.post_attention_norm);
    load_norm(names.mlp_post_norm, hidden, layer.mlp_post_norm);
    load_norm(names.q_norm, part.q_norm_features(), layer.q_norm);
    load_norm(names.k_norm, part.k_norm_features(), layer.k_norm);
    if (part.latent) {
      load_norm(names.query_latent_norm, part.latent->query_rank, layer.latent.query_norm);
      load_norm(names.key_latent_norm, part.latent->shape.rank, layer.latent.key_norm);
      load(names.index_norm, 0, part.latent->indexer.head_dim, layer.latent.index_norm);
      load(names.index_norm_bias, 0, part.latent->indexer.head_dim, layer.latent.index_norm_bias);
    }
    load(names.sinks, shard * heads, heads, layer.sinks);
    if (layer.o_bias != nullptr) load(names.o + ".bias", 0, hidden, layer.o_bias);
    if (layer.is_sparse()) {
      load(names.router_correction, 0, layer.experts.num_experts, layer.experts.correction);
      if (status.ok()) status = FillRouter(part, l, layer.experts, place(layer.experts.router));
      if (status.ok() && part.moe.biases) status = FillExpertBiases(names, layer.experts, place);
    }
    if (!part.qkv_bias) continue;
    const std::vector<std::string> biases = BiasesOf(names.qkv);
    if (part.latent) {
      const size_t queries = part.query_projection_features();
      load(biases[0], 0, queries, layer.qkv_bias);
      load(biases[1], 0, part.latent->shape.key_dim(), layer.qkv_bias + queries);
      continue;
    }
    load(biases[0], shard * q, q, layer.qkv_bias);
    if (!all) continue;
    load(biases[1], shard * kv, kv, layer.qkv_bias + q);
    load(biases[2], shard * kv, kv, layer.qkv_bias + q + kv);
  }
  if (all) load_norm(std::string(kFinalNormTensor), hidden, weights.final_norm_);
  WINNOW_RETURN_IF_ERROR(status);
  device_.CopyAsync(weights.memory_->data(), host.data(), weights.vector_bytes_, stream_);
  return device_.Synchronize(stream_);
}

absl::Status CheckpointUpload::FillMatrix(const std::vector<WeightPiece>& pieces, const DeviceForm& form,
                                          const device::DeviceMatrix& matrix) {
  if (form.is_stored) {
    const size_t groups = NumGroups(matrix);
    device::Arena arena(staging_->data());
    const device::MatrixCodes codes = {
        .codes = arena.TakeArray<uint8_t>(static_cast<size_t>(matrix.out_features) * matrix.in_features),
        .scales = arena.TakeArray<float>(matrix.out_features * groups),
        .zeros = arena.TakeArray<uint8_t>(matrix.out_features * groups)};
    WINNOW_CHECK(arena.used_bytes() <= staging_->bytes());
    WINNOW_RETURN_IF_ERROR(UploadCodes(pieces, matrix, codes));
    table_.matmul->pack_codes(stream_, codes, matrix);
    return absl::OkStatus();
  }
  void* const row_major = StagingOf(matrix, staging_.get());
  WINNOW_RETURN_IF_ERROR(Upload(pieces, row_major));
  table_.matmul->pack(stream_, row_major, matrix);
  return absl::OkStatus();
}

absl::StatusOr<StoredWeight> CheckpointUpload::Open(const WeightPiece& piece) const {
  WINNOW_ASSIGN_OR_RETURN(StoredWeight weight, StoredWeight::Open(checkpoint_, quantization_, piece.tensor,
                                                                  piece.tensor_rows, piece.tensor_columns));
  WINNOW_RETURN_IF_ERROR(weight.CheckFinite());
  WINNOW_CHECK(piece.first_row + piece.rows <= piece.tensor_rows &&
               piece.first_column + piece.columns <= piece.tensor_columns);
  return weight;
}

absl::Status CheckpointUpload::Upload(const std::vector<WeightPiece>& pieces, void* to) {
  auto* destination = static_cast<std::byte*>(to);
  auto* bounce = static_cast<uint16_t*>(pinned_->data());
  std::vector<float> scratch;
  for (const WeightPiece& piece : pieces) {
    WINNOW_ASSIGN_OR_RETURN(const StoredWeight weight, Open(piece));
    const size_t rows_at_once = kPinnedBytes / (piece.columns * sizeof(uint16_t));
    WINNOW_CHECK(rows_at_once >= 1);
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

absl::Status CheckpointUpload::UploadCodes(const std::vector<WeightPiece>& pieces, const device::DeviceMatrix& matrix,
                                           const device::MatrixCodes& to) {
  const size_t columns = matrix.in_features, groups = NumGroups(matrix);
  auto* const bounce = static_cast<uint8_t*>(pinned_->data());
  const size_t rows_at_once = std::min(kRowsOfCodes, kPinnedBytes / columns);
  WINNOW_CHECK(rows_at_once >= 1);
  std::vector<float> scales;
  std::vector<uint8_t> zeros;
  size_t row = 0;  // of the matrix
  for (const WeightPiece& piece : pieces) {
    WINNOW_ASSIGN_OR_RETURN(const StoredWeight weight, Open(piece));
    for (size_t done = 0; done < piece.rows; done += rows_at_once) {
      const size_t rows = std::min(rows_at_once, piece.rows - done);
      WINNOW_RETURN_IF_ERROR(AppendScales(weight, piece, piece.first_row + done, rows, matrix, scales, zeros));
      CopyCodes(weight, piece, piece.first_row + done, rows, bounce);
      device_.CopyAsync(const_cast<uint8_t*>(to.codes) + row * columns, bounce, rows * columns, stream_);
      row += rows;
      WINNOW_RETURN_IF_ERROR(device_.Synchronize(stream_));
    }
    for (const std::string& name : weight.tensors()) checkpoint_.ReleasePages(name);
  }
  WINNOW_CHECK(row == static_cast<size_t>(matrix.out_features) && scales.size() == row * groups);
  device_.CopyAsync(const_cast<float*>(to.scales), scales.data(), scales.size() * sizeof(float), stream_);
  device_.CopyAsync(const_cast<uint8_t*>(to.zeros), zeros.data(), zeros.size(), stream_);
  return device_.Synchronize(stream_);
}

}  // namespace winnow
