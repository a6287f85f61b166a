#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"

namespace winnow {

// Element types of the safetensors format whose size is whole bytes.
enum class TensorDtype : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kU16,
  kI16,
  kF16,
  kBf16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
  kC64
};

size_t TensorDtypeBytes(TensorDtype dtype);
const char* TensorDtypeName(TensorDtype dtype);  // as the format spells it
// The dtype as weights know it; nullopt for what Winnow does not compute with.
std::optional<Dtype> WeightDtype(TensorDtype dtype);

// One tensor of a header. [begin, end) are offsets into the data section that follows the header.
struct TensorEntry {
  std::string name;
  TensorDtype dtype = TensorDtype::kF32;
  std::vector<uint64_t> shape = {};
  uint64_t begin = 0;
  uint64_t end = 0;
};

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's reference implementation
inline constexpr size_t kMaxTensorRank = 32;

// Parses and checks the JSON header of a safetensors file whose data section has `data_bytes` bytes. On success the
// entries are in data order and tile the data section exactly: no overlap, no hole, end - begin == elements * element
// size. Errors name the tensor and the rule; the caller adds the file.
absl::StatusOr<std::vector<TensorEntry>> ParseSafetensorsHeader(std::string_view json, uint64_t data_bytes);

// A name from a file, fit for an error message: quoted, escaped, shortened.
std::string QuotedName(std::string_view name);

}  // namespace winnow
