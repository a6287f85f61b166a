#include "router/openai/json/json_writer.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "router/openai/json/utf8_scan.h"

namespace winnow {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr char kHex[] = "0123456789abcdef";

void AppendEscaped(char c, std::string* out) {
  switch (c) {
    case '"':
      *out += "\\\"";
      return;
    case '\\':
      *out += "\\\\";
      return;
    case '\n':
      *out += "\\n";
      return;
    case '\r':
      *out += "\\r";
      return;
    case '\t':
      *out += "\\t";
      return;
    default:
      *out += "\\u00";
      out->push_back(kHex[static_cast<unsigned char>(c) >> 4]);
      out->push_back(kHex[static_cast<unsigned char>(c) & 15]);
  }
}

template <typename T>
std::string FormatNumber(T value) {
  if (std::isnan(value)) return "null";
  if (std::isinf(value)) value = std::copysign(std::numeric_limits<T>::max(), value);
  char buffer[64];
  const std::to_chars_result result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, result.ptr);
}

}  // namespace

JsonWriter& JsonWriter::Key(std::string_view name) {
  String(name);
  text_ += ':';
  need_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::String(std::string_view text) {
  Separate();
  text_ += '"';
  size_t plain = 0;  // start of what can be copied as it is
  for (size_t i = 0; i < text.size();) {
    const unsigned char c = text[i];
    if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
      ++i;
      continue;
    }
    if (const size_t length = c < 0x80 ? 0 : Utf8SequenceLength(text.substr(i)); length > 0) {
      i += length;
      continue;
    }
    text_ += text.substr(plain, i - plain);
    if (c < 0x80) {
      AppendEscaped(text[i], &text_);
    } else {
      text_ += kReplacement;
    }
    plain = ++i;
  }
  text_ += text.substr(plain);
  text_ += '"';
  need_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::Float(float value) {
  return Raw(FormatNumber(value));
}
JsonWriter& JsonWriter::Double(double value) {
  return Raw(FormatNumber(value));
}

JsonWriter& JsonWriter::Raw(std::string_view json) {
  Separate();
  text_ += json;
  need_comma_ = true;
  return *this;
}

std::string JsonWriter::Take() {
  need_comma_ = false;
  return std::exchange(text_, {});
}

JsonWriter& JsonWriter::Open(char bracket) {
  Separate();
  text_ += bracket;
  need_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::Close(char bracket) {
  text_ += bracket;
  need_comma_ = true;
  return *this;
}

void JsonWriter::Separate() {
  if (need_comma_) text_ += ',';
}

}  // namespace winnow
