#include "tests/support/temp_dir.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "common/base/check.h"

namespace winnow {

TempDir::TempDir() {
  path_ = (std::filesystem::temp_directory_path() / "winnow-test-XXXXXX").string();
  WINNOW_CHECK(::mkdtemp(path_.data()) != nullptr);
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempDir::Write(std::string_view name, std::string_view contents) const {
  std::string path = path_ + "/" + std::string(name);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  file.close();
  WINNOW_CHECK(file.good());
  return path;
}

}  // namespace winnow
