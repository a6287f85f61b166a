#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace winnow {

// How many blocks of one (sequence, layer, kv head) its last kWindow selections read here: what fast memory has to hold
// so that the next one hardly reads any other (SparseServe's working set, of the window that its ablation chose). Rows
// that were resident on the inference rank were not read. A record costs a few operations per row, the answer none.
class WorkingSetMeter {
 public:
  static constexpr uint32_t kWindow = 12;

  // The rows that one more selection reads, in ascending order; none is a selection, too. Blocks of which it reads
  // fewer than `min_rows`, and so would get no copy in fast memory (RowTiers::Options::admit_rows), do not count for
  // it.
  void Record(std::span<const uint32_t> rows, uint32_t min_rows = 1);
  uint32_t blocks() const { return blocks_; }

 private:
  uint32_t selections_ = 0;                 // recorded
  std::vector<uint32_t> last_read_;         // by block: the number of the last selection that read it, from 1; 0: none
  std::array<uint32_t, kWindow> newest_{};  // by selection modulo kWindow: blocks that were read last by it
  uint32_t blocks_ = 0;                     // sum of newest_
};

}  // namespace winnow
