#include "inference_rank/backend/publish_stages.h"

#include "common/base/status.h"
#include "kernels/device/arena.h"
#include "model/forward.h"

namespace winnow {

size_t PublishStages::Carve(void* region, int max_prefill_rows, size_t row_bytes) {
  const size_t q = config_.q_features(), token_kv_bytes = config_.num_kv_heads * row_bytes;
  const size_t rows = kMaxDecodeRows, chunk = max_prefill_rows;
  device::Arena arena(region);
  for (Decode& stage : decode_) {
    stage.kv_rows = arena.Take<std::byte>(rows * token_kv_bytes);
    stage.q_pre_rope = arena.TakeArray<float>(rows * q);
    stage.prediction = arena.TakeArray<float>(rows * q);
    stage.hidden = arena.TakeArray<float>(rows * config_.hidden_size);
    stage.index_queries = arena.TakeArray<float>(rows * index_query_floats());
  }
  for (Chunk& stage : chunk_) {
    stage.kv_rows = arena.Take<std::byte>(chunk * token_kv_bytes);
    stage.q_pre_rope = arena.TakeArray<float>(chunk * q);
  }
  return arena.used_bytes();
}

absl::StatusOr<std::unique_ptr<PublishStages>> PublishStages::Create(device::Device& device, const ModelConfig& config,
                                                                     int max_prefill_rows, size_t row_bytes) {
  std::unique_ptr<PublishStages> stages(new PublishStages(config));
  WINNOW_ASSIGN_OR_RETURN(stages->memory_, device.AllocatePinned(stages->Carve(nullptr, max_prefill_rows, row_bytes)));
  stages->Carve(stages->memory_->data(), max_prefill_rows, row_bytes);
  return stages;
}

}  // namespace winnow
