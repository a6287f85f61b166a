#include "cache_rank/store/working_set_meter.h"

#include <algorithm>

#include "common/base/kv_layout.h"

namespace winnow {

void WorkingSetMeter::Record(std::span<const uint32_t> rows, uint32_t min_rows) {
  const uint32_t now = ++selections_;
  uint32_t& read_now = newest_[now % kWindow];
  blocks_ -= read_now;
  read_now = 0;  // of a selection that has left the window
  if (rows.empty()) return;
  const size_t blocks = rows.back() / kBlockTokens + 1;
  if (last_read_.size() < blocks) last_read_.resize(std::max(blocks, 2 * last_read_.size()), 0);
  for (size_t first = 0, end = 0; first < rows.size(); first = end) {
    const uint32_t block = rows[first] / kBlockTokens;
    while (end < rows.size() && rows[end] / kBlockTokens == block) ++end;
    if (end - first < min_rows) continue;
    uint32_t& last = last_read_[block];
    const bool counted = last != 0 && now - last < kWindow;
    if (counted) --newest_[last % kWindow];
    last = now;
    ++read_now;
    if (!counted) ++blocks_;
  }
}

}  // namespace winnow
