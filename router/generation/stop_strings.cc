#include "router/generation/stop_strings.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace winnow {

StopStrings::Automaton::Automaton(std::string s) : stop(std::move(s)), border(stop.size() + 1, 0) {
  for (size_t i = 1, k = 0; i < stop.size(); ++i) {
    while (k > 0 && stop[i] != stop[k]) k = border[k];
    if (stop[i] == stop[k]) ++k;
    border[i + 1] = k;
  }
}

StopStrings::StopStrings(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    if (!stop.empty()) automata_.emplace_back(std::move(stop));
  }
}

StopStrings::Result StopStrings::Push(std::string_view piece) {
  Result result;
  if (automata_.empty()) {
    result.text = piece;
    return result;
  }
  for (size_t i = 0; i < piece.size(); ++i) {
    const Automaton* found = nullptr;
    for (Automaton& a : automata_) {
      while (a.matched > 0 && piece[i] != a.stop[a.matched]) a.matched = a.border[a.matched];
      if (piece[i] == a.stop[a.matched]) ++a.matched;
      if (a.matched == a.stop.size() && (!found || a.stop.size() > found->stop.size())) found = &a;
    }
    if (!found) continue;
    held_.append(piece.substr(0, i + 1));
    WINNOW_CHECK(held_.size() >= found->stop.size());
    held_.resize(held_.size() - found->stop.size());
    result.text = std::move(held_);
    held_.clear();
    result.match = found->stop;
    return result;
  }
  held_.append(piece);
  size_t keep = 0;
  for (const Automaton& a : automata_) keep = std::max(keep, a.matched);
  result.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return result;
}

std::string StopStrings::Flush() {
  return std::exchange(held_, {});
}

}  // namespace winnow
