#include "inference_rank/step/layer_verifications.h"

#include <algorithm>

namespace winnow {

void LayerVerifications::Reset() {
  layer_ = -1;
  awaited_.clear();
  partials_.clear();
}

void LayerVerifications::BeginLayer(int layer, size_t num_rows) {
  layer_ = layer;
  awaited_.assign(num_rows * num_kv_heads_, 0);
  states_.resize(num_rows * num_kv_heads_ * state_floats_);
  partials_.clear();
}

absl::Status LayerVerifications::Take(int layer, int row, const PartialEntryView& verification) {
  const int kv_head = verification.entry.kv_head;
  const size_t head = Index(row, kv_head);
  if (layer != layer_ || awaited_[head] == 0) {
    return absl::InvalidArgumentError(absl::StrCat("second verification on layer ", layer, ", kv head ", kv_head));
  }
  awaited_[head] = 0;
  if (verification.state.empty()) return absl::OkStatus();
  float* const state = states_.data() + head * state_floats_;
  std::copy(verification.state.begin(), verification.state.end(), state);
  partials_.push_back({.row = row, .kv_head = kv_head, .o = state, .lse = state + lse_offset_});
  return absl::OkStatus();
}

bool LayerVerifications::Misses(int row) const {
  const size_t first = Index(row, 0);
  if (first >= awaited_.size()) return false;
  return std::any_of(awaited_.begin() + first, awaited_.begin() + first + num_kv_heads_,
                     [](uint8_t awaited) { return awaited != 0; });
}

}  // namespace winnow
