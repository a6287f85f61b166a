#pragma once
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "cache_rank/store/layer_selection.h"
#include "common/selection/attended_set.h"
#include "common/selection/selection_spec.h"
#include "transport/wire/wire.h"

namespace winnow::test {

// A sequence as an inference rank sees it. Rows and queries are functions of (seed, layer, head, position), so every
// byte that comes back can be checked, and sequences of one seed must be served alike.
struct FakeSequence {
  uint64_t id = 0;
  uint64_t seed = 0;
  uint32_t attach_epoch = 1;
  SelectionSpec spec;
  int group_size = 1;
  uint32_t prompt_tokens = 0;
  uint32_t max_positions = 400;
  uint32_t attach_position = 0;
  uint32_t next_position = 0;

  // Working set by [layer * num_kv_heads + head]: what was really received or computed here.
  using Row = std::vector<float>;
  struct List {
    std::map<uint32_t, Row> pool;                             // by pool index
    std::map<uint32_t, Row> ring;                             // by position
    std::set<uint32_t> attended;                              // pool indices of the newest selection
    std::map<std::pair<float, float>, uint32_t> position_of;  // of a row, by its first elements
  };
  std::vector<List> lists;
  std::set<uint32_t> refilled;  // positions that came in every layer; restart when done
  uint32_t refill_done_at = kNoPosition;

  // By position: [layer * num_kv_heads + head], of each as many lists as lists_per_head().
  std::map<uint32_t, std::vector<std::vector<uint32_t>>> selections;
  // By position: [layer * num_kv_heads + head] as reported in that position's entries.
  std::map<uint32_t, std::vector<float>> masses;
  std::set<std::pair<uint32_t, size_t>> bounded;  // (position, list) of those that are said to be lower bounds
  uint64_t streamed_rows = 0, local_rows = 0, prefetched_rows = 0;
  std::set<std::pair<uint32_t, size_t>> deltas;  // (position, list) that an entry came for

  uint32_t Anchor(uint32_t position) const { return AnchorPosition(spec, position, prompt_tokens); }
  uint32_t Window(uint32_t position) const { return WindowStart(spec, position, prompt_tokens); }
  bool Everything(size_t list, uint32_t position) const {
    return AttendsEverything(spec, list, position, prompt_tokens);
  }
  uint32_t Pool(size_t list) const { return PoolSlots(spec, list, max_positions, group_size); }
  int lists_per_head() const { return ListsPerKvHead(spec, group_size); }

  // Verifications by position: [layer * num_kv_heads + head].
  struct Verification {
    wire::PartialEntry entry;
    std::vector<float> o, lse;
    bool operator==(const Verification& other) const {
      return entry.flags == other.entry.flags && entry.mass_before == other.entry.mass_before &&
             entry.mass_after == other.entry.mass_after && o == other.o && lse == other.lse;
    }
  };
  std::map<uint32_t, std::map<size_t, Verification>> verifications;
};

}  // namespace winnow::test
