#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace winnow {

// Which special tokens the text of an output shows.
struct TextDecoding {
  bool skip_special_tokens = true;
  std::vector<uint32_t> shown_special = {};  // shown nevertheless
};

// Turns the growing ids of one output into text, piece by piece; each piece is valid UTF-8 and final.
class TextDecoder {
 public:
  virtual ~TextDecoder() = default;
  virtual std::string Push(uint32_t id) = 0;
  // What was held back; ends the text.
  virtual std::string Flush() = 0;
};

class TextDecoderFactory {
 public:
  virtual ~TextDecoderFactory() = default;
  // The factory must outlive its decoders.
  virtual std::unique_ptr<TextDecoder> NewDecoder(const TextDecoding& decoding) const = 0;
};

}  // namespace winnow
