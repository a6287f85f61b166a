#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "common/transport/wire.h"

namespace winnow {

// What one (position, layer, kv head) tells the inference rank: the body of its DeltaEntry, rows not yet gathered.
struct HeadDelta {
  std::vector<uint32_t> selected;            // pool indices of Sel in position order
  std::vector<uint32_t> streamed;            // pool indices that rows are sent to
  std::vector<uint32_t> streamed_positions;  // of the same rows
  std::vector<wire::LocalRow> local;         // rows that the inference rank copies from its ring
  float captured_mass = 0;                   // of the previous position; NaN when not measured
};

// The cache rank's image of one pool of an inference rank: which position each pool index of a (sequence, layer, kv
// head) holds. The cache rank alone assigns pool indices, so the image is exact without an answer from the other side.
//
// All indices are in one list from the most to the least recently selected; those that hold nothing are at its end, the
// lowest index last. A victim is taken from the end after this selection's hits have moved to the front: it is never
// part of the selection as long as the selection is not larger than the pool.
class HeadResidency {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Forgets every row. Positions will be below max_positions.
  void Reset(uint32_t max_positions);
  // Changes the pool's size; rows at indices that go away are forgotten.
  void Resize(uint32_t pool_slots);
  // Pool index i holds position first_position + i for i < count, and nothing else is held. count <= pool size.
  void SetIdentity(uint32_t first_position, uint32_t count);

  // Makes Sel = `selected` (ascending positions, at most as many as the pool has indices) resident at `position` and
  // says how: hits stay, rows still in the peer's ring of `ring_tokens` are copied there, the others are streamed.
  void Update(std::span<const uint32_t> selected, uint32_t position, uint32_t ring_tokens, HeadDelta* delta);

  // Makes `delta`, the answer of Update for `selected`, send every row whatever is resident (Transfer::kFull).
  static void SendAll(std::span<const uint32_t> selected, HeadDelta* delta);

  uint32_t pool_slots() const { return static_cast<uint32_t>(slots_.size()); }
  // Position at a pool index, kNone for none.
  uint32_t position_at(uint32_t pool_index) const { return slots_[pool_index].position; }

 private:
  struct Slot {
    uint32_t position = kNone;
    uint32_t newer = kNone, older = kNone;
  };
  void Unlink(uint32_t index);
  void PushNewest(uint32_t index);
  void PushOldest(uint32_t index);
  void MapPosition(uint32_t position, uint32_t index);

  uint32_t max_positions_ = 0;
  uint32_t newest_ = kNone, oldest_ = kNone;
  std::vector<Slot> slots_;         // by pool index
  std::vector<uint32_t> index_of_;  // by position; empty until the first row is held
};

}  // namespace winnow
