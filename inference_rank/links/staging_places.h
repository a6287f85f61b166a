#pragma once
#include <cstdint>
#include <optional>

namespace winnow {

// Places in a cache rank's memory that pushes of rows take in turn, and which it frees in the same order. Pushes are
// numbered from 1.
class StagingPlaces {
 public:
  // The next push's number; nullopt while all of `places` are taken.
  std::optional<uint64_t> Take(uint64_t places) {
    if (taken_ - freed_ >= places) return std::nullopt;
    return ++taken_;
  }
  // Places of pushes up to `number` are free. False when that goes back, or was never taken: a broken peer.
  bool SetFree(uint64_t number) {
    if (number < freed_ || number > taken_) return false;
    freed_ = number;
    return true;
  }

 private:
  uint64_t taken_ = 0;
  uint64_t freed_ = 0;
};

}  // namespace winnow
