#pragma once
#include <chrono>
#include <string_view>
#include <vector>

#include "inference_rank/sequence/sequence.h"

namespace winnow {

// Which of the sequences that decode take steps: as many as have room for their working sets in the fast memory of
// their cache ranks (after SparseServe's Algorithm 1), a sharded one on each of them. With more, each step would evict
// what the next one reads.
//
// Others are parked: they keep their slots, take no steps, and what they have in fast memory goes cold. Whoever has a
// turn keeps it while there is room, since each change of turns loads a working set. Order of the turns: those parked
// for `age_bound`, the longest first; then by priority; then those that have a turn, unless it has lasted for
// `age_bound`; then by arrival. Smaller ones may fill what is left behind one that does not fit. The first one of each
// cache rank needs no room there, so that one larger than fast memory goes on. So where n sequences are parked before
// it, a parked one waits no longer than n + 2 bounds.
//
// Host logic like Scheduler: no I/O, no clock.
class WorkingSetControl {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `age_bound` 0: turns last while there is room.
  explicit WorkingSetControl(std::chrono::microseconds age_bound) : age_bound_(age_bound) {}

  // `decoding`: all sequences that decode. Parks those that have no turn, and takes them out.
  void TakeTurns(std::vector<Sequence*>& decoding, Time now);
  // The cache rank at `address` has parked sequences, as of the last call.
  bool IsFull(std::string_view address) const;

 private:
  bool IsPast(Time since, Time now) const { return age_bound_.count() > 0 && now - since >= age_bound_; }
  bool Before(const Sequence& a, const Sequence& b, Time now) const;
  // Fast memory of one cache rank.
  struct Room {
    const CacheLink* link;
    uint64_t bytes;
    uint64_t typical;  // of a sequence there: what those count that have not decoded
    uint64_t taken;
    bool is_taken;  // by some sequence
    bool full;
  };
  Room& RoomOf(const CacheLink* link);
  void MeasureRooms(const std::vector<Sequence*>& decoding);
  bool Fits(const Sequence& sequence);

  const std::chrono::microseconds age_bound_;
  std::vector<Room> rooms_;  // as of the last call
};

}  // namespace winnow
