#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "cache_rank/store/kv_demand.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// How many sequences a cache rank's memory admits at once, by the arithmetic of their admission, without the memory
// being there.
struct KvRoom {
  size_t total_blocks = 0;
  size_t block_bytes = 0;
  size_t fast_bytes = 0;  // for index, of a fast tier; SIZE_MAX with one tier
  KvDemand demand;        // of each sequence

  uint64_t sequences() const;
  // Of all memory that is asked for by so many sequences.
  uint64_t BytesFor(uint64_t sequences) const { return sequences * demand.blocks * block_bytes; }
  // "320 blocks of 4608 bytes each, of 1820"
  std::string ToString() const;
};

// For sequences of at most `positions` positions with that specification, each opened by itself. `fast_memory_bytes`:
// of the fast tier; 0: there is none. `state_bytes`: of what each keeps beside rows. INVALID_ARGUMENT when the memory
// is too small for any sequence.
absl::StatusOr<KvRoom> RoomFor(const KvLayout& layout, const SelectionSpec& spec, uint32_t positions,
                               size_t memory_bytes, size_t fast_memory_bytes = 0, uint64_t state_bytes = 0);

}  // namespace winnow
