#include "tools/load/token_count.h"

#include "common/base/status.h"
#include "common/config/parse_value.h"

namespace winnow {

absl::StatusOr<uint32_t> ParseTokenCount(std::string_view text) {
  std::string_view digits = text;
  int64_t unit = 1;
  if (digits.ends_with('k')) unit = 1024;
  if (digits.ends_with('m')) unit = 1024 * 1024;
  if (unit != 1) digits.remove_suffix(1);
  const absl::StatusOr<int64_t> number = ParseInt(digits);
  if (!number.ok() || *number < 1 || *number > (int64_t{1} << 24) / unit) {
    return absl::InvalidArgumentError(absl::StrCat("\"", AbslSv(text), "\" is no number of tokens, such as 32k"));
  }
  return static_cast<uint32_t>(*number * unit);
}

}  // namespace winnow
