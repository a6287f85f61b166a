#include "cmd/connection/document.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/tokenizer/utf8.h"

namespace winnow {

absl::Status CheckDocument(const std::string& text, const std::string& source) {
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(source, " is empty"));
  if (const size_t at = FindInvalidUtf8(text); at < text.size()) {
    return absl::InvalidArgumentError(absl::StrCat(source, " is not UTF-8 text: see byte ", at));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadDocument(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": it is a folder"));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  WINNOW_RETURN_IF_ERROR(CheckDocument(text, path));
  return text;
}

}  // namespace winnow
