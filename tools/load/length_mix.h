#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// A distribution of lengths in tokens: a weighted list of lengths and ranges.
//   512            always 512
//   100-300        uniform between, both included
//   1k:3,8k-16k:1  three of four are 1024, the others uniform between 8192 and 16384
class LengthMix {
 public:
  // INVALID_ARGUMENT names the item that is malformed.
  static absl::StatusOr<LengthMix> Parse(std::string_view text);

  uint32_t Draw(std::mt19937_64& random) const;
  uint32_t longest() const;
  const std::string& text() const { return text_; }

 private:
  struct Item {
    uint32_t low, high;
    double weight;
  };
  std::string text_;
  std::vector<Item> items_;
};

}  // namespace winnow
