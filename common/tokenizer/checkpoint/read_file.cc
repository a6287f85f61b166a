#include "common/tokenizer/checkpoint/read_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>

namespace winnow {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;  // ten times the largest public tokenizer.json

}  // namespace

absl::StatusOr<std::string> ReadTokenizerFile(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  if (size > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", size, " bytes, the limit is ", kMaxFileBytes));
  }
  std::ifstream file(path, std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (!file.good() && !file.eof()) return absl::DataLossError(absl::StrCat(path, ": cannot be read"));
  return bytes;
}

}  // namespace winnow
