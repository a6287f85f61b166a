#pragma once
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace winnow::serving {

// Which units of a context (runs of kUnitRows rows) the selection of each next position reads, for one list that stands
// for all: a selection shares kOverlap of its units with the one before, kWindowOverlap with the union of the last
// twelve (SparseServe: 10.68 points more, and hardly any more beyond), and the others lie anywhere.
class BlockReads {
 public:
  static constexpr uint32_t kUnitRows = 128;
  static constexpr double kOverlap = 0.85;
  static constexpr double kWindowOverlap = 0.957;

  BlockReads(uint32_t budget_rows, uint64_t seed);

  // Units of the next selection in a context of `context_rows`, ascending, no unit twice.
  std::span<const uint32_t> Next(uint32_t context_rows);

 private:
  // Apart from that at `beside`.
  bool Holds(uint32_t unit, const uint32_t* beside) const;
  bool WasDropped(uint32_t unit) const;

  const uint32_t units_;
  std::minstd_rand random_;
  std::vector<uint32_t> current_;
  struct Dropped {
    uint32_t unit;
    uint64_t selection;  // the first that did not read it
  };
  std::vector<Dropped> dropped_;  // by selections within the window, and not read since
  uint64_t selections_ = 0;
};

}  // namespace winnow::serving
