#pragma once
#include <string>
#include <string_view>

namespace winnow {

// A fresh directory under the system's temporary directory, removed with its contents on destruction.
class TempDir {
 public:
  TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir();

  const std::string& path() const { return path_; }
  // Creates or overwrites a file; returns its path.
  std::string Write(std::string_view name, std::string_view contents) const;

 private:
  std::string path_;
};

}  // namespace winnow
