#include "cache_rank/step/layer_sections.h"

#include "cache_rank/step/frame_checks.h"
#include "common/base/kv_shard.h"
#include "transport/wire/wire.h"

namespace winnow {

absl::Status LayerSections::Parse(const ReceivedFrame& frame, const OpenPlan& plan) {
  const wire::FrameHeader& header = frame.header();
  const int layer = header.layer_first;
  if (header.row_count != plan.rows.size() || layer >= layout_.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", layer, " with ", header.row_count, " rows in a plan of ",
                                                   plan.rows.size(), " rows and ", layout_.num_layers, " layers"));
  }
  const int target = header.prediction_layer;
  if ((header.flags & (wire::kSectionPrediction | wire::kSectionHidden)) != 0 && target >= layout_.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat("prediction for layer ", target, " of ", layout_.num_layers));
  }
  if ((header.flags & wire::kSectionHidden) != 0 && hidden_size_ == 0) {
    return absl::InvalidArgumentError("residuals, and this cache rank projects no queries");
  }
  const auto row_bytes = [&](const KvShard& shard) { return shard.num_kv_heads * layout_.row_bytes(); };
  const auto query_bytes = [&](const KvShard& shard) {
    return static_cast<size_t>(shard.num_kv_heads) * layout_.group_size() * layout_.head_dim * sizeof(float);
  };
  const auto index_bytes = [&](const KvShard&) { return layout_.index_query_floats() * sizeof(float); };
  const auto hidden_bytes = [&](const KvShard&) { return hidden_size_ * sizeof(float); };
  if ((header.flags & wire::kSectionIndexQuery) != 0 && !layout_.has_indexer()) {
    return absl::InvalidArgumentError("queries of an indexer, which the model does not have");
  }
  size_t end = 0;
  Find(frame, plan, wire::kSectionAppend, layer, row_bytes, &end, &rows_);
  Find(frame, plan, wire::kSectionQuery, layer, query_bytes, &end, &queries_);
  Find(frame, plan, wire::kSectionPrediction, target, query_bytes, &end, &predictions_);
  Find(frame, plan, wire::kSectionHidden, target, hidden_bytes, &end, &hidden_);
  Find(frame, plan, wire::kSectionIndexQuery, layer, index_bytes, &end, &index_queries_);
  return CheckPayload(frame, end);
}

template <typename BytesOf>
void LayerSections::Find(const ReceivedFrame& frame, const OpenPlan& plan, uint32_t flag, int layer_of_model,
                         BytesOf bytes_of, size_t* end, Parts* parts) {
  parts->assign(plan.rows.size(), nullptr);
  if ((frame.header().flags & flag) == 0) return;
  *end = wire::AlignUp(*end, wire::kRowAlignment);
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const KvShard& shard = plan.rows[i].shard;
    if (!shard.HasLayer(layer_of_model)) continue;
    (*parts)[i] = frame.payload().data() + *end;
    *end += bytes_of(shard);
  }
}

}  // namespace winnow
