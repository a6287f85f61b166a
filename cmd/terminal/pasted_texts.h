#pragma once
#include <string>
#include <vector>

namespace winnow {

// Texts that were pasted into lines which show notes in their place.
class PastedTexts {
 public:
  // What a line shows of a paste: itself if it is short and of one line, otherwise a note.
  std::string Add(std::string text);
  // The line with every note replaced by what it stands for.
  std::string Expand(const std::string& line) const;

 private:
  struct Paste {
    std::string note, text;
  };
  std::vector<Paste> pastes_;
};

// What a terminal sent between the marks of a paste, with its line ends as line feeds.
std::string WithLineFeeds(const std::string& pasted);

}  // namespace winnow
