#pragma once
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "router/generation/stop_strings.h"
#include "router/generation/text_decoder.h"
#include "winnow/v1/rank.pb.h"

namespace winnow {

// Where the text of an output ends.
struct TextStop {
  std::vector<std::string> strings;
  std::set<uint32_t> silent_ids;  // tokens that end an output, and contribute no text
  bool include = false;           // the stop string belongs to the text
};

// The text of one output: decodes its tokens, leaves out what is silent, and cuts at stop strings. Pure but for the
// decoder; one thread at a time.
class OutputText {
 public:
  OutputText(std::unique_ptr<TextDecoder> decoder, TextStop stop);

  struct Piece {
    size_t tokens = 0;  // how many were used: all, or those up to the one that completed a stop string
    std::string text;
    std::optional<std::string> stop_match;  // the output is over
  };
  Piece Push(const std::vector<v1::Token>& tokens);
  // The tokens are over; the rest of the text may still complete a stop string.
  Piece Finish();

 private:
  std::unique_ptr<TextDecoder> decoder_;
  StopStrings stops_;
  const std::set<uint32_t> silent_ids_;
  const bool include_stop_;
};

}  // namespace winnow
