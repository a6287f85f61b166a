#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace winnow {

// The newest queries of one sequence and layer, each as it was before RoPE and rotated to its own position: what the
// temporal predictors blend, and what captured mass is measured with. Positions are consecutive.
class QueryRing {
 public:
  // Positions that a re-attach may drop without starving the predictors: in lockstep at most 2.
  static constexpr uint32_t kSlack = 6;

  // `capacity` queries of `floats` = num_query_heads * head_dim elements.
  QueryRing(uint32_t capacity, size_t floats) : capacity_(capacity), floats_(floats), data_(2 * capacity * floats) {}

  // Room for the query of `position`, to be filled by the caller: pre[floats] and rotated[floats]. A position that does
  // not continue the ring drops what is not contiguous with it.
  struct Slot {
    float* pre;
    float* rotated;
  };
  Slot Push(uint32_t position);
  // Drops positions >= `position`.
  void Truncate(uint32_t position);

  // Held positions are [first(), end()).
  uint32_t first() const { return first_; }
  uint32_t end() const { return end_; }
  bool Holds(uint32_t position) const { return first_ <= position && position < end_; }
  const float* pre(uint32_t position) const { return data_.data() + 2 * (position % capacity_) * floats_; }
  const float* rotated(uint32_t position) const { return pre(position) + floats_; }

 private:
  uint32_t capacity_;
  size_t floats_;
  uint32_t first_ = 0;
  uint32_t end_ = 0;
  std::vector<float> data_;  // [capacity][2][floats]
};

}  // namespace winnow
