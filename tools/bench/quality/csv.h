#pragma once
#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// Comma-separated values (RFC 4180), for fields without line ends.
std::string CsvLine(const std::vector<std::string>& fields);  // without line end

// Reads a file line by line; the first line names the columns.
class CsvReader {
 public:
  // INVALID_ARGUMENT, naming the file, when there is no header.
  static absl::StatusOr<CsvReader> Open(std::istream& in, std::string_view file);

  // The next line that is not empty, split; nullopt at the end. INVALID_ARGUMENT names file and line.
  absl::StatusOr<std::optional<std::vector<std::string>>> Next();
  // Of a column by its name. INVALID_ARGUMENT when there is none.
  absl::StatusOr<size_t> Column(std::string_view name) const;
  // "FILE:LINE" of what Next returned last.
  std::string Place() const;

 private:
  CsvReader(std::istream& in, std::string_view file) : in_(&in), file_(file) {}

  std::istream* in_;
  std::string file_;
  int line_ = 0;
  std::vector<std::string> columns_;
};

}  // namespace winnow
