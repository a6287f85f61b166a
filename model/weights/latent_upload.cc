// Latent attention of CheckpointUpload: what it has beside the product that begins a layer, and o.
#include "common/base/check.h"
#include "common/base/status.h"
#include "model/weights/bf16.h"
#include "model/weights/checkpoint_upload.h"

namespace winnow {

absl::Status CheckpointUpload::FillLatents(const ModelConfig& config, int layer, const DeviceLatentWeights& latent) {
  const LayerNames names = LayerNamesOf(config, layer);
  const LatentConfig& of = *config.latent;
  const size_t heads = config.num_query_heads, rank = of.shape.rank, nope = of.nope_dim, value = of.value_dim;
  if (of.query_rank > 0) {
    const auto all_of = [&](const std::string& name, size_t features) {
      const auto query_rank = static_cast<size_t>(of.query_rank);
      return WeightPiece{name + ".weight", features, query_rank, 0, features, 0, query_rank};
    };
    std::vector<WeightPiece> pieces = {all_of(names.query_up, heads * of.query_dim())};
    const auto index_features = static_cast<size_t>(of.indexer.num_heads) * of.indexer.head_dim;
    if (index_features > 0) pieces.push_back(all_of(names.index_query, index_features));
    WINNOW_RETURN_IF_ERROR(FillMatrix(pieces, {}, latent.query_up));
  }
  // Of each head the rows that give its key, turned, and those that give its value.
  const WeightPiece both{
      names.key_value_up + ".weight", heads * (nope + value), rank, 0, heads * (nope + value), 0, rank};
  WINNOW_ASSIGN_OR_RETURN(const StoredWeight weight, Open(both));
  auto* const bounce = static_cast<uint16_t*>(pinned_->data());
  WINNOW_CHECK((nope + value) * rank * sizeof(uint16_t) <= kPinnedBytes);
  auto* const keys = static_cast<uint16_t*>(const_cast<void*>(latent.key_up));
  auto* const values = static_cast<uint16_t*>(const_cast<void*>(latent.value_up));
  std::vector<float> row;
  for (size_t head = 0; head < heads; ++head) {
    for (size_t i = 0; i < nope + value; ++i) {
      row.clear();
      weight.AppendAsF32(head * (nope + value) + i, 0, rank, row);
      for (size_t at = 0; at < rank; ++at) bounce[i < nope ? at * nope + i : i * rank + at] = RoundToBf16(row[at]);
    }
    device_.CopyAsync(keys + head * nope * rank, bounce, nope * rank * sizeof(uint16_t), stream_);
    device_.CopyAsync(values + head * value * rank, bounce + nope * rank, value * rank * sizeof(uint16_t), stream_);
    WINNOW_RETURN_IF_ERROR(device_.Synchronize(stream_));
  }
  for (const std::string& name : weight.tensors()) checkpoint_.ReleasePages(name);
  return absl::OkStatus();
}

}  // namespace winnow
