#pragma once
#include <cstdint>
#include <string>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "common/selection/selection_spec.h"
#include "inference_rank/memory/prefill_mode.h"
#include "inference_rank/memory/slot_placement.h"

namespace winnow {

// The memory of an inference rank, worked out before anything is loaded; of each of its GPUs, where it has several.
struct MemoryPlan {
  uint64_t weights_bytes = 0;
  uint64_t slot_bytes = 0;     // resident KV of all running sequences
  uint64_t index_bytes = 0;    // of the keys in it, where rows are selected in place
  uint64_t prefill_bytes = 0;  // KV, and layer by layer residuals, of prompts that are being prefilled
  uint64_t activation_bytes = 0;
  uint64_t state_bytes = 0;  // that running sequences of a hybrid model keep beside rows
  uint64_t available_bytes = 0;
  uint32_t slot_pages = 0;       // those in the host's memory included
  uint32_t host_slot_pages = 0;  // behind a GPU's, pinned
  uint64_t host_slot_bytes = 0;
  uint32_t max_running = 0;
  std::string memory_name;  // for messages
  PrefillMode prefill_mode = PrefillMode::kChunked;
  int parts = 1;  // GPUs that share the model

  // With what is automatic at its least: the slots of one sequence, one prompt.
  uint64_t least_bytes = 0;

  uint64_t total_bytes() const {
    return weights_bytes + slot_bytes + index_bytes + prefill_bytes + activation_bytes + state_bytes;
  }
  // One line per part, with the arithmetic.
  std::string ToString() const;
};

struct MemoryNeeds {
  KvLayout layout;  // of the whole model
  int parts = 1;    // GPUs that share its heads: the bytes below are those of each
  SelectionSpec selection;
  bool selects_in_place = false;     // rows of sequences with it: all of them are resident
  uint64_t index_bytes_per_row = 0;  // beside the slots
  uint32_t max_context_tokens = 0;
  uint32_t max_running = 0;
  uint64_t weights_bytes = 0;
  uint64_t activation_bytes = 0;
  uint64_t state_bytes_per_sequence = 0;  // beside rows
  uint64_t slot_memory_bytes = 0;  // 0 = automatic: max_running sequences of the longest context, at most 40 % of what
                                   // is available and nine tenths of what the rest leaves
  uint64_t slot_host_memory_bytes = 0;  // most of the host's memory that slots may take behind those of a GPU
  uint32_t staging_slots = 0;           // of each list of a sequence whose rows lie there (SlotPlacement)
  uint64_t prefill_memory_bytes =
      0;  // 0 = automatic: two prompts of the longest context, at most 20 % of what is available
  PrefillMode prefill_mode = PrefillMode::kChunked;
  uint32_t hidden_size = 0;  // of residuals, where prompts may be prefilled layer by layer
  // Of which memory the plan is. A GPU's is this process's alone: there, automatic slot memory takes up to nine tenths
  // of what weights, activations and prefill leave.
  std::string memory_name = "memory";
  bool is_exclusive = false;
};

// RESOURCE_EXHAUSTED, with the arithmetic, when it does not fit; INVALID_ARGUMENT when what was given for slots or
// prompts does not hold even one sequence of the longest context.
absl::StatusOr<MemoryPlan> PlanMemory(const MemoryNeeds& needs, uint64_t available_bytes);

// Where sequences' slots may lie.
SlotTiers TiersOf(const MemoryNeeds& needs, const MemoryPlan& plan);

// Sequences of at most `positions` positions that run at once: as many as have slots, at most max_running.
uint32_t RunningSequences(const MemoryNeeds& needs, const MemoryPlan& plan, uint32_t positions);

// MemAvailable of /proc/meminfo, or a cgroup's limit where that is lower.
uint64_t AvailableMemoryBytes();

}  // namespace winnow
