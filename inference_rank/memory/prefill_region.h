#pragma once
#include <cstddef>
#include <map>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// A fixed range of the memory of one GPU, or one of each GPU that shares the kv heads with others, handed out in pieces
// as prompts come and go: first fit, neighbours merge again. Ranges of several GPUs are cut alike, so that a piece lies
// at the same offset in each. The memory itself is never touched here. Engine thread.
class PrefillRegion {
 public:
  PrefillRegion(std::vector<std::byte*> memories, size_t bytes_each);

  // A piece of at least `bytes` altogether, the same share of every memory; returns its offset there, a multiple of
  // 256. RESOURCE_EXHAUSTED when none is large enough.
  absl::StatusOr<size_t> Take(size_t bytes);
  void GiveBack(size_t offset);
  size_t largest_free() const;  // bytes altogether
  int num_parts() const { return static_cast<int>(memories_.size()); }
  std::byte* memory(int part) const { return memories_[part]; }

 private:
  const std::vector<std::byte*> memories_;
  std::map<size_t, size_t> free_;   // offset -> bytes; no two touch
  std::map<size_t, size_t> taken_;  // likewise
};

}  // namespace winnow
