#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace winnow {

// Finds the first stop string in a text that comes in pieces, however it is cut. The first is the one that ends first;
// of several that end together, the longest. Text goes out as soon as it cannot be part of a stop string any more, and
// never includes one. With valid UTF-8 in pieces and stop strings, what goes out is cut at characters.
//
// Knuth-Morris-Pratt, one automaton per stop string: linear in the text for each.
class StopStrings {
 public:
  // Empty stop strings are ignored.
  explicit StopStrings(std::vector<std::string> stops);

  struct Result {
    std::string text;                  // final, to be shown
    std::optional<std::string> match;  // the stop string that was found; nothing may be pushed after it
  };
  Result Push(std::string_view piece);
  // The text is over: what was held back, because it could have been the beginning of a stop string.
  std::string Flush();

 private:
  struct Automaton {
    explicit Automaton(std::string s);

    std::string stop;
    std::vector<size_t> border;  // of each prefix: its longest proper prefix that is a suffix of it
    size_t matched = 0;          // the longest prefix of `stop` that the text ends with
  };

  std::vector<Automaton> automata_;
  std::string held_;  // as long as the longest `matched`
};

}  // namespace winnow
