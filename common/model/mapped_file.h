#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace winnow {

// A whole regular file, mapped read-only. Move-only; unmaps on destruction. The file must not be truncated while it is
// mapped: reads beyond its new end would raise SIGBUS.
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return {data_, size_}; }

  // Drops the resident pages that lie wholly inside `part`, a piece of bytes(); they are read from the file again when
  // touched.
  void ReleasePages(std::span<const uint8_t> part) const;

 private:
  MappedFile(std::string path, const uint8_t* data, size_t size) : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Reads a small text file (configs); an error names the file when it is missing or larger than `max_bytes`.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

}  // namespace winnow
