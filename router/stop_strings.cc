#include "router/stop_strings.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace winnow {

StopStrings::StopStrings(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    if (stop.empty()) continue;
    Automaton automaton{.stop = std::move(stop)};
    const std::string& s = automaton.stop;
    automaton.border.assign(s.size() + 1, 0);
    for (size_t i = 1, k = 0; i < s.size(); ++i) {
      while (k > 0 && s[i] != s[k]) k = automaton.border[k];
      if (s[i] == s[k]) ++k;
      automaton.border[i + 1] = k;
    }
    automata_.push_back(std::move(automaton));
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
