#pragma once
#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

namespace winnow {

inline constexpr std::string_view kJsonSpace = " \t\r\n";

struct FoundMarker {
  size_t at = 0;
  std::string_view marker;
};

// The marker that occurs first in `text`.
inline std::optional<FoundMarker> FindMarker(std::string_view text, std::span<const std::string_view> markers) {
  std::optional<FoundMarker> first;
  for (const std::string_view marker : markers) {
    const size_t at = text.find(marker);
    if (at != text.npos && (!first || at < first->at)) first = FoundMarker{at, marker};
  }
  return first;
}

// How many bytes at the end of `text` could be the beginning of a marker.
inline size_t HeldBytes(std::string_view text, std::span<const std::string_view> markers) {
  size_t held = 0;
  for (const std::string_view marker : markers) {
    for (size_t length = std::min(marker.size() - 1, text.size()); length > held; --length) {
      if (text.ends_with(marker.substr(0, length))) held = length;
    }
  }
  return held;
}

// True while `text` may go on to begin with `marker`: it is the whole marker, more, or a beginning of it.
inline bool MayBegin(std::string_view text, std::string_view marker) {
  return text.starts_with(marker) || marker.starts_with(text);
}

}  // namespace winnow
