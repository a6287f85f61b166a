#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "inference_rank/step/entry_views.h"
#include "model/forward.h"

namespace winnow {

// The verifications that a decode step waits for at one layer, those of earlier layers having come, and the partial
// states that they bring. Reused from layer to layer and from step to step. One thread.
class LayerVerifications {
 public:
  explicit LayerVerifications(const KvLayout& layout)
      : num_kv_heads_(layout.num_kv_heads),
        state_floats_(wire::PartialStateBytes(layout.group_size(), layout.head_dim) / sizeof(float)),
        lse_offset_(static_cast<size_t>(layout.group_size()) * layout.head_dim) {}

  // A new step: nothing is awaited, and no verification may come.
  void Reset();
  // A new layer with room for verifications on all heads of these rows, none of them awaited yet.
  void BeginLayer(int layer, size_t num_rows);
  void Await(int row, int kv_head) { awaited_[Index(row, kv_head)] = 1; }

  // Takes a verification that is awaited. INVALID_ARGUMENT: it came already, or nobody waits for one.
  absl::Status Take(int layer, int row, const PartialEntryView& verification);

  int layer() const { return layer_; }  // -1: none has begun
  // True when one of the row's verifications has not come.
  bool Misses(int row) const;
  // Those that have come and correct something.
  std::span<const PartialAttention> partials() const { return partials_; }
  size_t state_floats() const { return state_floats_; }

 private:
  size_t Index(int row, int kv_head) const { return static_cast<size_t>(row) * num_kv_heads_ + kv_head; }

  // Constant after construction.
  const int num_kv_heads_;
  const size_t state_floats_, lse_offset_;  // of a state, and in it

  int layer_ = -1;
  std::vector<uint8_t> awaited_;            // [num_rows][num_kv_heads] 1: the verification has not come
  std::vector<float> states_;               // [num_rows][num_kv_heads]: o [group_size, head_dim], then lse [group_size]
  std::vector<PartialAttention> partials_;  // that have come
};

}  // namespace winnow
