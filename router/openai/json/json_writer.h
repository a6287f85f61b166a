#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace winnow {

// Appends JSON to a string, in the order of the calls, without a document in between: responses are written token by
// token. Commas and quotes are its affair; that the calls make a well-formed value is the caller's. Strings that are
// not UTF-8 come out with U+FFFD in place of what is wrong, so that a response is always valid JSON.
class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }
  JsonWriter& Key(std::string_view name);
  JsonWriter& String(std::string_view text);
  JsonWriter& Bool(bool value) { return Raw(value ? "true" : "false"); }
  JsonWriter& Null() { return Raw("null"); }
  template <typename T>
  requires std::is_integral_v<T> JsonWriter& Int(T value) { return Raw(std::to_string(value)); }
  // The shortest text that reads back as the same float; JSON has no infinity or NaN, so these become the nearest
  // finite value and null.
  JsonWriter& Float(float value);
  JsonWriter& Double(double value);
  // A value that is JSON already.
  JsonWriter& Raw(std::string_view json);

  std::string Take();
  const std::string& text() const { return text_; }

 private:
  JsonWriter& Open(char bracket);
  JsonWriter& Close(char bracket);
  void Separate();

  std::string text_;
  bool need_comma_ = false;
};

}  // namespace winnow
