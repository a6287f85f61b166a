#pragma once
#include <algorithm>
#include <cstdint>

namespace winnow {

inline constexpr uint32_t kGroupPages = 16;

// The stage before the first of a two-stage selection: groups of kGroupPages consecutive pages, by the bounds of all of
// their keys. What is left out of long contexts by groups is not read page by page. Groups with sinks, and those that
// reach into the recent window, always stay; of the others the `kept` of the greatest bounds, ties to the lower one.
struct PageGroups {
  uint32_t rows = 0;            // of a group
  uint32_t begin = 0, end = 0;  // groups that may be left out
  uint32_t kept = 0;            // of these

  constexpr bool leaves_out() const { return end > begin && end - begin > kept; }
  constexpr uint32_t num_left_out() const { return leaves_out() ? end - begin - kept : 0; }
};

// Of a list whose rows [first_row, last_row) may be selected, `candidates` of them by pages: groups hold as many.
constexpr PageGroups PageGroupsOf(uint32_t page_tokens, uint32_t group_candidates, uint32_t candidates,
                                  uint32_t first_row, uint32_t last_row) {
  const uint32_t rows = kGroupPages * page_tokens;
  const uint32_t wanted = std::max(group_candidates, candidates);
  return {.rows = rows,
          .begin = first_row / rows + (first_row % rows != 0 ? 1 : 0),
          .end = last_row / rows,
          .kept = group_candidates == 0 ? ~0u : wanted / rows + (wanted % rows != 0 ? 1 : 0)};
}

}  // namespace winnow
