#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "cache_rank/select/scorer/scratch_buffer.h"
#include "kernels/kernel_table.h"
#include "transport/wire/wire.h"

namespace winnow {

// What one (position, layer, kv head) tells the inference rank: the body of its DeltaEntry, rows not yet gathered.
struct HeadDelta {
  std::vector<uint32_t> selected;            // pool indices of Sel in position order
  std::vector<QueryHeadMask> members;        // of them, where each query head has a list of its own; otherwise none
  std::vector<uint32_t> streamed;            // pool indices that rows are sent to
  std::vector<uint32_t> streamed_positions;  // of the same rows
  std::vector<wire::LocalRow> local;         // rows that the inference rank copies from its ring
  float captured_mass = std::numeric_limits<float>::quiet_NaN();  // of the previous position; NaN when not measured
  bool captured_mass_is_bound = false;                            // a lower bound of it
  uint32_t prefetch_hits = 0;                                     // hits on rows that had been moved ahead of time
};

struct PrefetchScratch {
  ScratchBuffer<float> ages;
  ScratchBuffer<uint32_t> victims;
};

// The cache rank's image of one pool of an inference rank: which position each pool index of a (sequence, layer, kv
// head) holds. The cache rank alone assigns pool indices, so the image is exact without an answer from the other side.
//
// Victims are the indices that were selected longest ago, those that hold nothing first, ties to the lower index. None
// is part of the selection, as long as that is not larger than the pool. Ages lie in one array, so that a hit is one
// store and victims are found in one pass: a list in order of use costs a chain of cache misses per hit.
class HeadResidency {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  // Ages are kept as f32, exact for positions below this.
  static constexpr uint32_t kMaxPositions = 1u << 24;

  // Forgets every row. Positions will be below max_positions <= kMaxPositions.
  void Reset(uint32_t max_positions);
  // Changes the pool's size; rows at indices that go away are forgotten.
  void Resize(uint32_t pool_slots);
  // Pool index i holds position first_position + i for i < count, and nothing else is held. count <= pool size.
  void SetIdentity(uint32_t first_position, uint32_t count);

  // Makes Sel = `selected` (ascending positions, at most as many as the pool has indices) resident at `position`, which
  // is not below that of the update before, and says how: hits stay, rows still in the peer's ring of `ring_tokens` are
  // copied there, the others are streamed.
  void Update(const KernelTable& kernels, std::span<const uint32_t> selected, uint32_t position, uint32_t ring_tokens,
              ScratchBuffer<uint32_t>& scratch, HeadDelta* delta);

  // Rows of `wanted` (ascending positions) that could be moved into the pool before they are selected, after the update
  // at `position`: those that are neither resident nor about to be copied from the ring. Each is given an index that
  // holds nothing that was used at `position` and nothing that is wanted; without enough of them the last rows go
  // without. Changes nothing: fills delta->streamed and streamed_positions alone.
  void PlanPrefetch(const KernelTable& kernels, std::span<const uint32_t> wanted, uint32_t position,
                    uint32_t ring_tokens, PrefetchScratch& scratch, HeadDelta* delta) const;
  // The row of `row_position` has been sent to `pool_index`, as PlanPrefetch said after the update at `position`. It
  // counts as used there.
  void CommitPrefetch(uint32_t pool_index, uint32_t row_position, uint32_t position);
  // Makes `delta`, the answer of Update for `selected`, send every row whatever is resident (Transfer::kFull).
  static void SendAll(std::span<const uint32_t> selected, HeadDelta* delta);

  uint32_t pool_slots() const { return static_cast<uint32_t>(positions_.size()); }
  // Position at a pool index, kNone for none.
  uint32_t position_at(uint32_t pool_index) const { return positions_[pool_index]; }

 private:
  void Place(uint32_t position, uint32_t index);

  uint32_t max_positions_ = 0;
  std::vector<uint32_t> positions_;  // by pool index
  std::vector<float> ages_;          // by pool index: minus the position of the last use; +inf where nothing is held
  std::vector<uint32_t> index_of_;   // by position; empty until the first row is held
  std::vector<bool> prefetched_;     // by pool index: not selected since; empty until the first prefetch
};

}  // namespace winnow
