#include "common/grammar/text_cursor.h"

namespace winnow {

absl::StatusOr<std::optional<RepeatBounds>> TakeRepeatBounds(TextCursor& cursor) {
  if (cursor.Take("*")) return RepeatBounds{.min = 0, .max = std::nullopt};
  if (cursor.Take("+")) return RepeatBounds{.min = 1, .max = std::nullopt};
  if (cursor.Take("?")) return RepeatBounds{.min = 0, .max = 1};
  if (!cursor.Take("{")) return std::optional<RepeatBounds>();
  const std::optional<uint32_t> min = cursor.TakeNumber();
  if (!min.has_value()) return cursor.Error("a repetition needs a number, at most a million,");
  RepeatBounds bounds{.min = *min, .max = *min};
  if (cursor.Take(",")) {
    bounds.max = cursor.TakeNumber();
    if (bounds.max.has_value() && *bounds.max < *min)
      return cursor.Error("a repetition's bounds are the wrong way round");
  }
  if (!cursor.Take("}")) return cursor.Error("a repetition lacks its \"}\"");
  return bounds;
}

}  // namespace winnow
