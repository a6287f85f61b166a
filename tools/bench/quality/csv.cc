#include "tools/bench/quality/csv.h"

#include <algorithm>

namespace winnow {
namespace {

absl::StatusOr<std::vector<std::string>> SplitLine(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted) {
      if (c != '"') {
        fields.back() += c;
      } else if (i + 1 < line.size() && line[i + 1] == '"') {
        fields.back() += '"';
        ++i;
      } else {
        quoted = false;
      }
    } else if (c == ',') {
      fields.emplace_back();
    } else if (c == '"' && fields.back().empty()) {
      quoted = true;
    } else {
      fields.back() += c;
    }
  }
  if (quoted) return absl::InvalidArgumentError("a quote is not closed");
  return fields;
}

}  // namespace

std::string CsvLine(const std::vector<std::string>& fields) {
  std::string line;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) line += ',';
    if (fields[i].find_first_of(",\"") == std::string::npos) {
      line += fields[i];
      continue;
    }
    line += '"';
    for (const char c : fields[i]) {
      if (c == '"') line += '"';
      line += c;
    }
    line += '"';
  }
  return line;
}

absl::StatusOr<CsvReader> CsvReader::Open(std::istream& in, std::string_view file) {
  CsvReader reader(in, file);
  WINNOW_ASSIGN_OR_RETURN(std::optional<std::vector<std::string>> header, reader.Next());
  if (!header.has_value()) return absl::InvalidArgumentError(absl::StrCat(reader.file_, ": is empty"));
  reader.columns_ = *std::move(header);
  return reader;
}

absl::StatusOr<std::optional<std::vector<std::string>>> CsvReader::Next() {
  std::string line;
  while (std::getline(*in_, line)) {
    ++line_;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    absl::StatusOr<std::vector<std::string>> fields = SplitLine(line);
    if (fields.ok() && !columns_.empty() && fields->size() != columns_.size()) {
      fields =
          absl::InvalidArgumentError(absl::StrCat("has ", fields->size(), " fields, the header has ", columns_.size()));
    }
    if (!fields.ok()) return Annotate(fields.status(), Place());
    return *std::move(fields);
  }
  return std::nullopt;
}

absl::StatusOr<size_t> CsvReader::Column(std::string_view name) const {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  if (found != columns_.end()) return static_cast<size_t>(found - columns_.begin());
  return absl::InvalidArgumentError(absl::StrCat(file_, ": column \"", AbslSv(name), "\" is missing"));
}

std::string CsvReader::Place() const {
  return absl::StrCat(file_, ":", line_);
}

}  // namespace winnow
