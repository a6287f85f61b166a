#include "inference_rank/scheduler/working_set_control.h"

#include <algorithm>
#include <tuple>

namespace winnow {
namespace {

// Working sets change from step to step: who returns leaves an eighth of fast memory free, so that nobody is parked and
// brought back in turn.
constexpr uint64_t kSpareOnReturn = 8;

}  // namespace

bool WorkingSetControl::Before(const Sequence& a, const Sequence& b, Time now) const {
  const auto overdue = [&](const Sequence& sequence) {
    return sequence.parked_since.has_value() && IsPast(*sequence.parked_since, now);
  };
  const bool a_overdue = overdue(a), b_overdue = overdue(b);
  if (a_overdue != b_overdue) return a_overdue;
  if (a_overdue && *a.parked_since != *b.parked_since) return *a.parked_since < *b.parked_since;
  if (a.priority != b.priority) return a.priority > b.priority;
  const auto rank = [&](const Sequence& sequence) {
    if (sequence.parked_since.has_value()) return 2;
    return IsPast(sequence.turn_since, now) ? 1 : 0;
  };
  const int a_rank = rank(a), b_rank = rank(b);
  if (a_rank != b_rank) return a_rank < b_rank;
  // Of turns that are over the oldest ends first.
  if (a_rank == 1 && a.turn_since != b.turn_since) return a.turn_since > b.turn_since;
  return a.arrival < b.arrival;
}

WorkingSetControl::Room& WorkingSetControl::RoomOf(const CacheLink* link) {
  const auto found = std::find_if(rooms_.begin(), rooms_.end(), [&](const Room& room) { return room.link == link; });
  if (found != rooms_.end()) return *found;
  rooms_.push_back(
      {.link = link, .bytes = link->fast_rows_bytes(), .typical = 0, .taken = 0, .is_taken = false, .full = false});
  return rooms_.back();
}

// Until its cache rank has said what a sequence reads it counts as much as the others there on average.
void WorkingSetControl::MeasureRooms(const std::vector<Sequence*>& decoding) {
  rooms_.clear();
  std::vector<uint64_t> known;
  for (const Sequence* sequence : decoding) {
    for (const ShardLink& shard : sequence->shards) {
      Room& room = RoomOf(shard.link.get());
      known.resize(rooms_.size());
      if (!shard.working_set_bytes.has_value()) continue;
      room.typical += *shard.working_set_bytes;
      ++known[&room - rooms_.data()];
    }
  }
  for (size_t i = 0; i < rooms_.size(); ++i) rooms_[i].typical /= std::max<uint64_t>(1, known[i]);
}

bool WorkingSetControl::Fits(const Sequence& sequence) {
  bool fits = true;
  for (const ShardLink& shard : sequence.shards) {
    Room& room = RoomOf(shard.link.get());
    if (room.bytes == wire::kOneTier || !room.is_taken) continue;
    const uint64_t needed = shard.working_set_bytes.value_or(room.typical);
    const uint64_t spare = sequence.parked_since.has_value() ? room.bytes / kSpareOnReturn : 0;
    if (room.taken + needed <= room.bytes - spare) continue;
    room.full = true;
    fits = false;
  }
  return fits;
}

void WorkingSetControl::TakeTurns(std::vector<Sequence*>& decoding, Time now) {
  MeasureRooms(decoding);
  std::sort(decoding.begin(), decoding.end(),
            [&](const Sequence* a, const Sequence* b) { return Before(*a, *b, now); });
  for (Sequence* sequence : decoding) {
    if (!Fits(*sequence)) {
      if (!sequence->parked_since.has_value()) sequence->parked_since = now;
      continue;
    }
    if (sequence->parked_since.has_value()) sequence->turn_since = now;
    sequence->parked_since.reset();
    for (const ShardLink& shard : sequence->shards) {
      Room& room = RoomOf(shard.link.get());
      room.taken += shard.working_set_bytes.value_or(room.typical);
      room.is_taken = true;
    }
  }
  std::erase_if(decoding, [](const Sequence* sequence) { return sequence->parked_since.has_value(); });
}

bool WorkingSetControl::IsFull(std::string_view address) const {
  return std::any_of(rooms_.begin(), rooms_.end(),
                     [&](const Room& room) { return room.full && room.link->address() == address; });
}

}  // namespace winnow
