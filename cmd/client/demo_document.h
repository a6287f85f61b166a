#pragma once
#include <cstdint>
#include <string>

namespace winnow {

// A question about one fact of a long text that is about something else.
struct DemoDocument {
  std::string text;
  std::string question;
  std::string answer;
};

// Of about `num_characters`, the same for the same seed: plain sentences about software, one paragraph a line, with
// `num_facts` lines "The code of NAME is DIGITS." scattered among them; one of the names is asked for.
DemoDocument MakeDemoDocument(uint64_t seed, size_t num_characters, int num_facts);

}  // namespace winnow
