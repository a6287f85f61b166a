#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "cache_rank/store/cached_sequence.h"

namespace winnow {

// Selects for many lists at once and not on the executor: on a GPU that keeps the index of the keys, while
// rows and the images of the pools stay here. What it selects is what SelectHead would, up to rows whose importance
// differs by less than the scores' roundings, and a pure function of the same inputs. Data-plane thread.
class BatchSelector {
 public:
  // One sequence, at a position that it selects for.
  struct Item {
    const CachedSequence* sequence = nullptr;
    LayerSelection* layer = nullptr;  // `selected` of the heads that are sparse at `position` is replaced
    uint32_t position = 0;
    const float* queries = nullptr;  // [num_query_heads, head_dim], rotated, not scaled
  };

  virtual ~BatchSelector() = default;

  // False for sequences whose specification it cannot serve or whose index it has no room for.
  virtual bool Takes(const CachedSequence& sequence) = 0;
  // Different sequences; their rows below the positions are stored. After an error nothing was changed, and nothing
  // will ever work again.
  virtual absl::Status Select(int layer, std::span<const Item> items) = 0;
  // The sequence of this id, if there is one, has nothing in common with a later one.
  virtual void Forget(uint64_t sequence_id) = 0;
  // Forgets the sequences that do not stay.
  virtual void Retain(const std::function<bool(uint64_t sequence_id)>& stays) = 0;
};

}  // namespace winnow
