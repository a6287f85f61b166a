#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace winnow {

// Which sequence has which row of a batch.
class BatchRows {
 public:
  explicit BatchRows(int batch_rows) : holders_(batch_rows, 0) {}

  // The first free one: steps are as wide as the last row that is taken. -1 when there is none.
  int Take(uint64_t sequence_id) {
    const auto free = std::find(holders_.begin(), holders_.end(), 0);
    if (free == holders_.end()) return -1;
    *free = sequence_id;
    return static_cast<int>(free - holders_.begin());
  }
  // Unless somebody else has it by now.
  void Free(int batch_row, uint64_t sequence_id) {
    if (holders_[batch_row] == sequence_id) holders_[batch_row] = 0;
  }
  int taken() const { return static_cast<int>(holders_.size() - std::count(holders_.begin(), holders_.end(), 0)); }

 private:
  std::vector<uint64_t> holders_;  // by batch row; 0: free
};

}  // namespace winnow
