#include "common/config/fields.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/nearest_name.h"

namespace winnow {
namespace {

std::string Canonical(std::string_view name) {
  return absl::StrReplaceAll(AbslSv(name), {{"_", "-"}});
}

template <class T>
absl::Status OutOfRange(std::string_view text, T low, T high) {
  return absl::InvalidArgumentError(absl::StrCat("\"", AbslSv(text), "\" is outside [", low, ", ", high, "]"));
}

}  // namespace

void Fields::Custom(std::string name, std::string type, std::string help,
                    std::function<absl::Status(std::string_view)> parse, std::function<std::string()> format) {
  fields_.push_back({std::move(name), std::move(type), std::move(help), false, std::move(parse), std::move(format)});
}

void Fields::Text(std::string name, std::string* value, std::string help) {
  Custom(
      std::move(name), "TEXT", std::move(help),
      [value](std::string_view text) {
        *value = std::string(text);
        return absl::OkStatus();
      },
      [value] { return *value; });
  Describe(FieldKind::kText);
}

void Fields::File(std::string name, std::string* value, std::string help) {
  Text(std::move(name), value, std::move(help));
  fields_.back().type = "FILE";
  Describe(FieldKind::kFile);
}

void Fields::Folder(std::string name, std::string* value, std::string help) {
  Text(std::move(name), value, std::move(help));
  fields_.back().type = "DIR";
  Describe(FieldKind::kFolder);
}

void Fields::Bool(std::string name, bool* value, std::string help) {
  Custom(
      std::move(name), "BOOL", std::move(help),
      [value](std::string_view text) {
        WINNOW_ASSIGN_OR_RETURN(*value, ParseBool(text));
        return absl::OkStatus();
      },
      [value] { return std::string(*value ? "true" : "false"); });
  fields_.back().is_bool = true;
  Describe(FieldKind::kBool);
}

void Fields::Bytes(std::string name, int64_t* value, std::string help, int64_t low, int64_t high) {
  Custom(
      std::move(name), "BYTES", std::move(help),
      [value, low, high](std::string_view text) -> absl::Status {
        WINNOW_ASSIGN_OR_RETURN(const int64_t bytes, ParseBytes(text));
        if (bytes < low || bytes > high) {
          return absl::InvalidArgumentError(
              absl::StrCat("\"", AbslSv(text), "\" is outside [", FormatBytes(low), ", ", FormatBytes(high), "]"));
        }
        *value = bytes;
        return absl::OkStatus();
      },
      [value] { return FormatBytes(*value); });
  Describe(FieldKind::kBytes, static_cast<double>(low), static_cast<double>(high));
}

void Fields::Address(std::string name, HostPort* value, std::string help) {
  Custom(
      std::move(name), "HOST:PORT", std::move(help),
      [value](std::string_view text) {
        WINNOW_ASSIGN_OR_RETURN(*value, ParseHostPort(text));
        return absl::OkStatus();
      },
      [value] { return value->ToString(); });
  Describe(FieldKind::kAddress);
}

void Fields::Duration(std::string name, std::chrono::microseconds* value, std::string help) {
  Custom(
      std::move(name), "DURATION", std::move(help),
      [value](std::string_view text) {
        WINNOW_ASSIGN_OR_RETURN(*value, ParseDuration(text));
        return absl::OkStatus();
      },
      [value] { return FormatDuration(*value); });
  Describe(FieldKind::kDuration);
}

void Fields::AddInteger(std::string name, std::string help, int64_t low, int64_t high, std::function<void(int64_t)> set,
                        std::function<std::string()> format) {
  Custom(
      std::move(name), "INT", std::move(help),
      [low, high, set = std::move(set)](std::string_view text) -> absl::Status {
        WINNOW_ASSIGN_OR_RETURN(const int64_t value, ParseInt(text));
        if (value < low || value > high) return OutOfRange(text, low, high);
        set(value);
        return absl::OkStatus();
      },
      std::move(format));
  Describe(FieldKind::kInteger, static_cast<double>(low), static_cast<double>(high));
}

void Fields::AddNumber(std::string name, std::string help, double low, double high, std::function<void(double)> set,
                       std::function<std::string()> format) {
  Custom(
      std::move(name), "NUMBER", std::move(help),
      [low, high, set = std::move(set)](std::string_view text) -> absl::Status {
        WINNOW_ASSIGN_OR_RETURN(const double value, ParseNumber(text));
        if (value < low || value > high) return OutOfRange(text, low, high);
        set(value);
        return absl::OkStatus();
      },
      std::move(format));
  Describe(FieldKind::kNumber, low, high);
}

void Fields::AddChoice(std::string name, std::string help, std::vector<std::string> names,
                       std::function<void(size_t)> set, std::function<std::string()> format) {
  std::string type = absl::StrJoin(names, "|");
  std::vector<std::string> choices = names;
  Custom(
      std::move(name), std::move(type), std::move(help),
      [names = std::move(names), set = std::move(set)](std::string_view text) -> absl::Status {
        const auto it = std::find(names.begin(), names.end(), text);
        if (it == names.end()) {
          return absl::InvalidArgumentError(
              absl::StrCat("expected one of ", absl::StrJoin(names, ", "), ", got \"", AbslSv(text), "\""));
        }
        set(static_cast<size_t>(it - names.begin()));
        return absl::OkStatus();
      },
      std::move(format));
  Describe(FieldKind::kChoice);
  fields_.back().choices = std::move(choices);
}

const Field* Fields::Find(std::string_view name) const {
  const std::string wanted = Canonical(name);
  for (const Field& field : fields_) {
    if (Canonical(field.name) == wanted) return &field;
  }
  return nullptr;
}

std::string Fields::Nearest(std::string_view name) const {
  std::vector<std::string> canonical;
  for (const Field& field : fields_) canonical.push_back(Canonical(field.name));
  const std::vector<std::string_view> names(canonical.begin(), canonical.end());
  const std::string_view nearest = NearestName(Canonical(name), names);
  return nearest.empty() ? "" : Find(nearest)->name;
}

}  // namespace winnow
