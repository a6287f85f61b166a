#include "tools/load/length_mix.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tools/load/token_count.h"

namespace winnow {

absl::StatusOr<LengthMix> LengthMix::Parse(std::string_view text) {
  LengthMix mix;
  mix.text_ = text;
  for (const absl::string_view item_text : absl::StrSplit(AbslSv(text), ',')) {
    const auto malformed = [&] {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", item_text, "\" is no length: TOKENS, LOW-HIGH or either with :WEIGHT, as in 1k:3,8k-16k:1"));
    };
    const std::vector<absl::string_view> parts = absl::StrSplit(item_text, ':');
    Item item{.low = 0, .high = 0, .weight = 1};
    if (parts.size() > 2) return malformed();
    if (parts.size() == 2 && (!absl::SimpleAtod(parts[1], &item.weight) || !(item.weight > 0) || item.weight > 1e9)) {
      return malformed();
    }
    const std::vector<absl::string_view> range = absl::StrSplit(parts[0], '-');
    const absl::StatusOr<uint32_t> low = ParseTokenCount(StdSv(range.front())),
                                   high = ParseTokenCount(StdSv(range.back()));
    if (range.size() > 2 || !low.ok() || !high.ok() || *low > *high) return malformed();
    item.low = *low;
    item.high = *high;
    mix.items_.push_back(item);
  }
  return mix;
}

uint32_t LengthMix::Draw(std::mt19937_64& random) const {
  double total = 0;
  for (const Item& item : items_) total += item.weight;
  double left = std::uniform_real_distribution<double>(0, total)(random);
  const Item* chosen = &items_.back();
  for (const Item& item : items_) {
    if (left < item.weight) {
      chosen = &item;
      break;
    }
    left -= item.weight;
  }
  return std::uniform_int_distribution<uint32_t>(chosen->low, chosen->high)(random);
}

uint32_t LengthMix::longest() const {
  uint32_t longest = 0;
  for (const Item& item : items_) longest = std::max(longest, item.high);
  return longest;
}

}  // namespace winnow
