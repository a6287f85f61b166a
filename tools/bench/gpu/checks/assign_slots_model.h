#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace winnow {

// What device::CacheKernels::assign_slots must do to one list, spelled out: the residency of a pool and the answer to a
// plan.
struct AssignSlotsModel {
  static constexpr uint32_t kNone = ~0u;

  AssignSlotsModel(uint32_t pool_slots, uint32_t max_positions)
      : index_of(max_positions, kNone), position_of(pool_slots, kNone), last_plan(pool_slots, 0) {}

  void Update(const std::vector<uint32_t>& selected, uint32_t plan) {
    std::vector<uint32_t> targets, victims;
    for (uint32_t slot = 0; slot < position_of.size(); ++slot) {
      if (position_of[slot] == kNone) {
        targets.push_back(slot);
      } else if (!std::binary_search(selected.begin(), selected.end(), position_of[slot])) {
        victims.push_back(slot);
      }
    }
    std::stable_sort(victims.begin(), victims.end(),
                     [&](uint32_t a, uint32_t b) { return plan - last_plan[a] > plan - last_plan[b]; });
    pool_indices.clear();
    missing.clear();
    missing_indices.clear();
    for (const uint32_t position : selected) {
      if (index_of[position] == kNone) missing.push_back(position);
    }
    if (missing.size() > targets.size()) {
      victims.resize(missing.size() - targets.size());
      std::sort(victims.begin(), victims.end());
      targets.insert(targets.end(), victims.begin(), victims.end());
    }
    for (size_t i = 0; i < missing.size(); ++i) {
      const uint32_t slot = targets[i];
      if (position_of[slot] != kNone) index_of[position_of[slot]] = kNone;
      position_of[slot] = missing[i];
      index_of[missing[i]] = slot;
      missing_indices.push_back(slot);
    }
    for (const uint32_t position : selected) {
      pool_indices.push_back(index_of[position]);
      last_plan[index_of[position]] = plan;
    }
  }

  std::vector<uint32_t> index_of, position_of, last_plan;
  std::vector<uint32_t> pool_indices, missing, missing_indices;  // of the last plan
};

}  // namespace winnow
