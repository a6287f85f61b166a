#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache_rank/stream/inference_link.h"
#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "transport/transport.h"

namespace winnow {

// The sections of a Layer frame (wire::LayerFlags), by row of its plan. Parts lie side by side, of those rows alone
// whose shard has the section's layer.
class LayerSections {
 public:
  // `hidden_size` of the residuals that may come; 0: none may.
  LayerSections(const KvLayout& layout, int hidden_size) : layout_(layout), hidden_size_(hidden_size) {}

  // Finds the parts, which stay the frame's. INVALID_ARGUMENT when it is no layer of this plan.
  absl::Status Parse(const ReceivedFrame& frame, const OpenPlan& plan);

  // Of plan row i; null where its shard lacks the layer, or the frame has no such section.
  const std::byte* rows(size_t i) const { return rows_[i]; }  // [num_kv_heads]
  // f32 [num_query_heads][head_dim] of the shard, before RoPE.
  const float* query(size_t i) const { return Floats(queries_[i]); }
  const float* prediction(size_t i) const { return Floats(predictions_[i]); }
  // f32 [KvLayout::index_query_floats], rotated.
  const float* index_query(size_t i) const { return Floats(index_queries_[i]); }
  const float* hidden(size_t i) const { return Floats(hidden_[i]); }  // f32 [hidden_size]

 private:
  using Parts = std::vector<const std::byte*>;  // [plan rows]

  static const float* Floats(const std::byte* part) { return reinterpret_cast<const float*>(part); }
  // Moves `end` behind the section. `bytes_of` a shard's part.
  template <typename BytesOf>
  static void Find(const ReceivedFrame& frame, const OpenPlan& plan, uint32_t flag, int layer_of_model,
                   BytesOf bytes_of, size_t* end, Parts* parts);

  const KvLayout layout_;
  const int hidden_size_;
  Parts rows_, queries_, predictions_, hidden_, index_queries_;
};

}  // namespace winnow
