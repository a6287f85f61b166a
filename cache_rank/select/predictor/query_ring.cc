#include "cache_rank/select/predictor/query_ring.h"

#include <algorithm>

namespace winnow {

QueryRing::Slot QueryRing::Push(uint32_t position) {
  Truncate(position);
  if (position != end_) first_ = position;
  end_ = position + 1;
  first_ = std::max(first_, end_ > capacity_ ? end_ - capacity_ : 0);
  float* slot = data_.data() + 2 * (position % capacity_) * floats_;
  return {slot, slot + floats_};
}

void QueryRing::Truncate(uint32_t position) {
  end_ = std::min(end_, position);
  first_ = std::min(first_, end_);
}

}  // namespace winnow
