#include "common/model/safetensors.h"

#include <bit>
#include <cstring>
#include <utility>

#include "common/base/status.h"

namespace winnow {

static_assert(std::endian::native == std::endian::little, "weights are read in place");

absl::StatusOr<SafetensorsLayout> ParseSafetensors(std::span<const uint8_t> file) {
  constexpr uint64_t kPrefixBytes = 8;
  if (file.size() < kPrefixBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file has ", file.size(), " bytes, too few for a header length"));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kPrefixBytes);
  if (header_bytes > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header length is ", header_bytes, ", more than the limit of ", kMaxHeaderBytes));
  }
  if (header_bytes > file.size() - kPrefixBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the header length is ", header_bytes, ", but only ",
                                                   file.size() - kPrefixBytes, " bytes follow it"));
  }
  const std::string_view json(reinterpret_cast<const char*>(file.data()) + kPrefixBytes, header_bytes);
  SafetensorsLayout layout{.data_begin = kPrefixBytes + header_bytes, .entries = {}};
  WINNOW_ASSIGN_OR_RETURN(layout.entries, ParseSafetensorsHeader(json, file.size() - layout.data_begin));
  return layout;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  WINNOW_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  absl::StatusOr<SafetensorsLayout> layout = ParseSafetensors(file.bytes());
  if (!layout.ok()) return Annotate(layout.status(), path);
  return SafetensorsFile(std::move(file), layout->data_begin, std::move(layout->entries));
}

std::span<const uint8_t> SafetensorsFile::header() const {
  return file_.bytes().first(data_begin_);
}

TensorView SafetensorsFile::View(const TensorEntry& entry) const {
  return {.name = entry.name,
          .dtype = entry.dtype,
          .shape = entry.shape,
          .bytes = file_.bytes().subspan(data_begin_ + entry.begin, entry.end - entry.begin)};
}

}  // namespace winnow
