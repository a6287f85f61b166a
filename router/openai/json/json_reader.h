#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "router/openai/json/json_document.h"

namespace winnow {

// Typed access to the fields of one JSON object. Fields that are absent or null are nullopt. The first field with a
// wrong type or value makes status() an error that names its path; later reads then return nullopt, so that a parser
// reads all its fields and checks once.
class JsonReader {
 public:
  // `object` must outlive the reader. `path` is put in front of field names ("winnow." for the fields of "winnow").
  explicit JsonReader(const Json& object, std::string path = "") : object_(object), path_(std::move(path)) {}

  const absl::Status& status() const { return status_; }
  void Fail(std::string_view field, std::string_view message, std::string_view code = "invalid_value");

  // The value as it is; null when absent or null.
  const Json* Find(const char* field) const;

  std::optional<bool> Bool(const char* field);
  std::optional<std::string> String(const char* field);
  // A number with an integral value ("2.0" is one) in [low, high].
  std::optional<int64_t> Int(const char* field, int64_t low, int64_t high);
  // A number in [low, high], or (low, high] with `low_excluded`.
  std::optional<double> Number(const char* field, double low, double high, bool low_excluded = false);

 private:
  const Json& object_;
  const std::string path_;
  absl::Status status_;
};

// The integral value of a number, nullopt when it is not a number, has a fraction or does not fit.
std::optional<int64_t> AsInt64(const Json& value);

}  // namespace winnow
