#include "router/openai/json/json_reader.h"

#include <cmath>
#include <limits>

#include "router/openai/json/api_error.h"

namespace winnow {
namespace {

// 2^63: the first double beyond int64.
constexpr double kInt64End = 9223372036854775808.0;

std::string BoundText(double value) {
  const double rounded = std::floor(value);
  if (rounded == value && std::abs(value) < kInt64End) return absl::StrCat(static_cast<int64_t>(value));
  return absl::StrCat(value);
}

}  // namespace

std::optional<int64_t> AsInt64(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (!(number >= -kInt64End && number < kInt64End) || std::floor(number) != number) return std::nullopt;
  return static_cast<int64_t>(number);
}

void JsonReader::Fail(std::string_view field, std::string_view message, std::string_view code) {
  if (!status_.ok()) return;
  const std::string path = absl::StrCat(path_, AbslSv(field));
  status_ = InvalidField(path, absl::StrCat("\"", path, "\" ", AbslSv(message)), code);
}

const Json* JsonReader::Find(const char* field) const {
  const auto it = object_.find(field);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<bool> JsonReader::Bool(const char* field) {
  const Json* value = Find(field);
  if (value == nullptr || !status_.ok()) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Fail(field, absl::StrCat("must be true or false, not ", value->type_name(), "."), "invalid_type");
  return std::nullopt;
}

std::optional<std::string> JsonReader::String(const char* field) {
  const Json* value = Find(field);
  if (value == nullptr || !status_.ok()) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Fail(field, absl::StrCat("must be a string, not ", value->type_name(), "."), "invalid_type");
  return std::nullopt;
}

std::optional<int64_t> JsonReader::Int(const char* field, int64_t low, int64_t high) {
  const Json* value = Find(field);
  if (value == nullptr || !status_.ok()) return std::nullopt;
  if (!value->is_number()) {
    Fail(field, absl::StrCat("must be an integer, not ", value->type_name(), "."), "invalid_type");
    return std::nullopt;
  }
  const std::optional<int64_t> number = AsInt64(*value);
  if (number && *number >= low && *number <= high) return number;
  Fail(field, absl::StrCat("must be an integer from ", low, " to ", high, ", not ", value->dump(), "."));
  return std::nullopt;
}

std::optional<double> JsonReader::Number(const char* field, double low, double high, bool low_excluded) {
  const Json* value = Find(field);
  if (value == nullptr || !status_.ok()) return std::nullopt;
  if (!value->is_number()) {
    Fail(field, absl::StrCat("must be a number, not ", value->type_name(), "."), "invalid_type");
    return std::nullopt;
  }
  const double number = value->get<double>();
  if ((low_excluded ? number > low : number >= low) && number <= high) return number;
  Fail(field, absl::StrCat("must be ", low_excluded ? "above " : "at least ", BoundText(low), " and at most ",
                           BoundText(high), ", not ", value->dump(), "."));
  return std::nullopt;
}

}  // namespace winnow
