#include <span>

#include "common/base/check.h"
#include "common/model/safetensors.h"

// Whatever the bytes, the parser ends with an error or with entries that tile the data section.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Without a length prefix of its own, nearly every input would fail on its first 8 bytes: those are tried as they
  // are, and the input is also tried as a header with the data size that its last two bytes give.
  const auto whole = winnow::ParseSafetensors({data, size});
  if (whole.ok()) WINNOW_CHECK(whole->data_begin <= size);
  if (size < 2) return 0;
  const uint64_t data_bytes = data[size - 1] * 256u + data[size - 2];
  const auto entries = winnow::ParseSafetensorsHeader({reinterpret_cast<const char*>(data), size - 2}, data_bytes);
  if (!entries.ok()) return 0;
  uint64_t covered = 0;
  for (const winnow::TensorEntry& entry : *entries) {
    WINNOW_CHECK(entry.begin == covered && entry.end >= entry.begin);
    covered = entry.end;
  }
  WINNOW_CHECK(covered == data_bytes);
  return 0;
}
