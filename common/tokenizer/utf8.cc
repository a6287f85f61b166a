#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

// Range of the second byte after a lead byte (Unicode table 3-7); the others are 80..BF.
struct SecondByte {
  unsigned char low, high;
};

SecondByte SecondByteRange(unsigned char lead) {
  switch (lead) {
    case 0xE0:
      return {0xA0, 0xBF};
    case 0xED:
      return {0x80, 0x9F};
    case 0xF0:
      return {0x90, 0xBF};
    case 0xF4:
      return {0x80, 0x8F};
    default:
      return {0x80, 0xBF};
  }
}

bool IsLead(unsigned char byte) {
  return byte >= 0xC2 && byte <= 0xF4;
}

// May `byte` stand at index `index` (1..3) of a sequence that starts with `lead`?
bool Continues(unsigned char lead, size_t index, unsigned char byte) {
  const SecondByte range = index == 1 ? SecondByteRange(lead) : SecondByte{0x80, 0xBF};
  return byte >= range.low && byte <= range.high;
}

}  // namespace

size_t FindInvalidUtf8(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const auto lead = static_cast<unsigned char>(text[pos]);
    if (lead < 0x80) {
      ++pos;
      continue;
    }
    if (!IsLead(lead)) return pos;
    const size_t bytes = Utf8SequenceBytes(lead);
    if (text.size() - pos < bytes) return pos;
    for (size_t i = 1; i < bytes; ++i) {
      if (!Continues(lead, i, static_cast<unsigned char>(text[pos + i]))) return pos;
    }
    pos += bytes;
  }
  return std::string_view::npos;
}

char32_t NextCodePoint(std::string_view text, size_t* pos) {
  const auto lead = static_cast<unsigned char>(text[*pos]);
  const auto low6 = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[*pos + i]) & 0x3F); };
  char32_t code_point;
  switch (Utf8SequenceBytes(lead)) {
    case 1:
      code_point = lead;
      *pos += 1;
      break;
    case 2:
      code_point = (char32_t{lead} & 0x1F) << 6 | low6(1);
      *pos += 2;
      break;
    case 3:
      code_point = (char32_t{lead} & 0x0F) << 12 | low6(1) << 6 | low6(2);
      *pos += 3;
      break;
    default:
      code_point = (char32_t{lead} & 0x07) << 18 | low6(1) << 12 | low6(2) << 6 | low6(3);
      *pos += 4;
      break;
  }
  return code_point;
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

void LossyUtf8Stream::Push(std::string_view bytes, std::string* out) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (!pending_.empty()) {
      const auto lead = static_cast<unsigned char>(pending_[0]);
      if (Continues(lead, pending_.size(), byte)) {
        pending_.push_back(c);
        if (pending_.size() == Utf8SequenceBytes(lead)) {
          out->append(pending_);
          pending_.clear();
        }
        continue;
      }
      out->append(kReplacementCharacter);
      pending_.clear();
    }
    if (byte < 0x80) {
      out->push_back(c);
    } else if (IsLead(byte)) {
      pending_.push_back(c);
    } else {
      out->append(kReplacementCharacter);
    }
  }
}

void LossyUtf8Stream::Finish(std::string* out) {
  if (!pending_.empty()) out->append(kReplacementCharacter);
  pending_.clear();
}

}  // namespace winnow
