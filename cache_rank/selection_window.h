#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace winnow {

// How many different rows the last kSelections selections of one list hold: what SparseServe (its Algorithm 1) calls a
// sequence's working set, and what has to be near for the next selection to find most of its rows there.
class SelectionWindow {
 public:
  static constexpr uint8_t kSelections = 12;

  // `selected`: positions, ascending, each once.
  void Add(std::span<const uint32_t> selected);
  uint32_t rows() const { return rows_; }
  void Clear() { *this = {}; }

 private:
  // A byte per row is small enough to stay in a core's first cache for contexts of some ten thousand tokens.
  static constexpr uint8_t kLast = 255;
  static constexpr size_t kCounts = 16;  // a power of two above kSelections

  std::vector<uint8_t> stamps_;             // by position: number of the newest selection that holds it; 0: none
  std::array<uint32_t, kCounts> counts_{};  // by number, modulo: rows whose newest selection it is
  uint8_t now_ = 0;                         // number of the newest selection; starts again from kSelections
  uint32_t rows_ = 0;
};

}  // namespace winnow
