#include "inference_rank/working_set_control.h"

#include <algorithm>
#include <tuple>

namespace winnow {
namespace {

// Working sets change from step to step: who returns leaves an eighth of fast memory free, so that nobody is parked and
// brought back in turn.
constexpr uint64_t kSpareOnReturn = 8;

// Until its cache rank has said what a sequence reads it counts as much as the others on average.
uint64_t TypicalBytes(std::span<Sequence* const> sequences) {
  uint64_t sum = 0, known = 0;
  for (const Sequence* sequence : sequences) {
    sum += sequence->working_set_bytes.value_or(0);
    known += sequence->working_set_bytes.has_value();
  }
  return known == 0 ? 0 : sum / known;
}

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

void WorkingSetControl::TakeTurnsOf(std::span<Sequence*> sequences, Time now) {
  const CacheLink* link = sequences.front()->link.get();
  const uint64_t fast_bytes = link == nullptr ? wire::kOneTier : link->fast_rows_bytes();
  const uint64_t typical = TypicalBytes(sequences);
  std::sort(sequences.begin(), sequences.end(),
            [&](const Sequence* a, const Sequence* b) { return Before(*a, *b, now); });
  uint64_t taken = 0;
  bool first = true, full = false;
  for (Sequence* sequence : sequences) {
    const uint64_t needed = sequence->working_set_bytes.value_or(typical);
    const uint64_t room = sequence->parked_since.has_value() ? fast_bytes - fast_bytes / kSpareOnReturn : fast_bytes;
    if (fast_bytes == wire::kOneTier || first || taken + needed <= room) {
      if (sequence->parked_since.has_value()) sequence->turn_since = now;
      sequence->parked_since.reset();
      taken += needed;
      first = false;
    } else {
      if (!sequence->parked_since.has_value()) sequence->parked_since = now;
      full = true;
    }
  }
  if (full) full_.push_back(link);
}

void WorkingSetControl::TakeTurns(std::vector<Sequence*>& decoding, Time now) {
  full_.clear();
  std::sort(decoding.begin(), decoding.end(),
            [](const Sequence* a, const Sequence* b) { return std::less<>()(a->link.get(), b->link.get()); });
  for (size_t first = 0, last = 0; first < decoding.size(); first = last) {
    while (last < decoding.size() && decoding[last]->link == decoding[first]->link) ++last;
    TakeTurnsOf(std::span(decoding).subspan(first, last - first), now);
  }
  std::erase_if(decoding, [](const Sequence* sequence) { return sequence->parked_since.has_value(); });
}

bool WorkingSetControl::IsFull(std::string_view address) const {
  return std::any_of(full_.begin(), full_.end(), [&](const CacheLink* link) { return link->address() == address; });
}

}  // namespace winnow
