#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/mapped_file.h"
#include "common/model/safetensors_header.h"

namespace winnow {

// A tensor in a mapped file; borrows everything, row-major, little-endian. `bytes` may be unaligned for its dtype.
struct TensorView {
  std::string_view name;
  TensorDtype dtype = TensorDtype::kF32;
  std::span<const uint64_t> shape;
  std::span<const uint8_t> bytes;
};

// One .safetensors file (u64 header length, JSON header, data), mapped read-only and fully validated by Open. Every
// error begins with the path.
class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorEntry>& entries() const { return entries_; }  // in data order
  std::span<const uint8_t> header() const;                              // the length prefix and the JSON
  TensorView View(const TensorEntry& entry) const;
  void ReleasePages(std::span<const uint8_t> part) const { file_.ReleasePages(part); }

 private:
  SafetensorsFile(MappedFile file, uint64_t data_begin, std::vector<TensorEntry> entries)
      : file_(std::move(file)), data_begin_(data_begin), entries_(std::move(entries)) {}

  MappedFile file_;
  uint64_t data_begin_;
  std::vector<TensorEntry> entries_;
};

// The same checks on bytes in memory: returns the header's length with its prefix.
struct SafetensorsLayout {
  uint64_t data_begin = 0;
  std::vector<TensorEntry> entries;
};
absl::StatusOr<SafetensorsLayout> ParseSafetensors(std::span<const uint8_t> file);

}  // namespace winnow
