#pragma once
#include <cstddef>
#include <map>

#include "common/base/status.h"

namespace winnow {

// A fixed range of a device's memory, handed out in parts as prompts come and go: first fit, neighbours merge again.
// The memory itself is never touched here. Engine thread.
class PrefillRegion {
 public:
  PrefillRegion(void* memory, size_t bytes);

  // A part of at least `bytes`, aligned to 256. RESOURCE_EXHAUSTED when none is large enough.
  absl::StatusOr<std::byte*> Take(size_t bytes);
  void GiveBack(std::byte* part);
  size_t largest_free() const;

 private:
  std::byte* const memory_;
  std::map<size_t, size_t> free_;   // offset -> bytes; no two touch
  std::map<size_t, size_t> taken_;  // likewise
};

}  // namespace winnow
