#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/selection/attended_set.h"
#include "common/selection/selection_spec.h"
#include "winnow/v1/rank.pb.h"

namespace winnow {

// Of one request.
inline constexpr uint32_t kMaxTraceParts = 512;

// Follows which positions the pools of a sequence hold, and what each of its decode steps attends to, for requests that
// ask to see it (DispatchRequest.Submit.trace_parts). Pools are assigned by the cache ranks, which name the positions
// of the rows that they stream to such a sequence (wire::kPlanTellsPositions); what else lies in a working set follows
// from the position. A list is layer * num_kv_heads + kv_head. Engine thread.
class SelectionTrace {
 public:
  SelectionTrace(const SelectionSpec& spec, const KvLayout& layout, uint32_t prompt_tokens, uint32_t max_positions,
                 uint32_t parts);

  // A step at `position` begins; `attach_position` is the first one of this attachment, whose pools begin empty.
  void BeginStep(uint32_t position, uint32_t attach_position);
  // The list's selection at the step's position, as pool indices.
  void OnSelected(size_t list, std::span<const uint32_t> pool_indices);
  // `position` has been copied to a pool index, or came from the cache rank. Also between steps.
  void OnCopied(size_t list, uint32_t pool_index, uint32_t position) { Place(list, pool_index, position); }
  void OnStreamed(size_t list, std::span<const uint32_t> pool_indices, std::span<const uint32_t> positions);
  // Captured mass of a list at `position`, which is that of the step or the one before.
  void OnMass(uint32_t position, double mass);

  // What the step that has ended did; the token that it drew carries it. Nothing when there was none since the last
  // call, as before the first token.
  std::optional<v1::SelectionTrace> Take();

 private:
  using Counts = google::protobuf::RepeatedField<uint32_t>;
  struct Mass {
    uint32_t position = 0;
    double sum = 0;
    uint32_t count = 0;
  };

  std::vector<uint32_t>& PoolOf(size_t list);
  void Place(size_t list, uint32_t pool_index, uint32_t position);
  uint32_t PartOf(uint32_t position) const {
    return static_cast<uint32_t>(uint64_t{position} * parts_ / (position_ + 1));
  }
  // Adds the positions [first, end) of one list.
  void AddRange(uint32_t first, uint32_t end, Counts* counts) const;
  void AddList(size_t list, v1::SelectionTrace* trace) const;
  void AddMass(v1::SelectionTrace* trace);

  // Constant after construction.
  const SelectionSpec spec_;
  const size_t num_lists_;
  const uint32_t group_size_;
  const uint32_t prompt_tokens_;
  const uint32_t max_positions_;
  const uint32_t parts_;

  uint32_t position_ = 0;
  std::optional<uint32_t> attach_position_;
  bool has_step_ = false;
  std::vector<std::vector<uint32_t>> pools_;     // [list][pool index] position; empty until the list is sparse
  std::vector<std::vector<uint32_t>> selected_;  // [list] pool indices, of the newest selection
  std::vector<uint32_t> moved_;                  // positions of rows that came since the step before
  Mass mass_;
};

}  // namespace winnow
