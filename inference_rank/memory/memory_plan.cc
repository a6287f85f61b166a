#include "inference_rank/memory/memory_plan.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "absl/strings/str_format.h"
#include "inference_rank/memory/working_set.h"

namespace winnow {
namespace {

std::string Mib(uint64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

uint32_t PagesPerSequence(const MemoryNeeds& needs, uint32_t positions) {
  return WorkingSet::PagesNeeded(needs.layout, needs.selection, positions, needs.parts,
                                 needs.selects_in_place ? SlotOrder::kByPosition : SlotOrder::kParts);
}

// Of host memory, pages for which there is room for their index, and for what stages them, in `bytes` of the GPU's.
uint64_t HostPagesBehind(const MemoryNeeds& needs, uint64_t bytes, uint64_t page_bytes, uint64_t index_page_bytes) {
  constexpr uint32_t kAny = std::numeric_limits<uint32_t>::max() / kSlotPageTokens;
  const SlotPlacement spread =
      SpreadPlacement(needs.layout, needs.selection, needs.max_context_tokens, needs.max_context_tokens,
                      needs.selects_in_place ? SlotOrder::kByPosition : SlotOrder::kParts,
                      {.pages = {.front = 0, .host = kAny}, .staging_slots = needs.staging_slots});
  if (spread.host_columns() == 0) return 0;
  const uint64_t columns = (needs.max_context_tokens + kSlotPageTokens - 1) / kSlotPageTokens;
  const uint64_t in_front = columns - spread.host_columns() + spread.staging_pages;
  const uint64_t of_sequence = in_front * (page_bytes + index_page_bytes) + spread.host_columns() * index_page_bytes;
  return static_cast<uint64_t>(static_cast<double>(bytes) / of_sequence * spread.host_columns());
}

// The options that the missing bytes may come from.
std::string WhatToLower(const MemoryNeeds& needs, const MemoryPlan& plan) {
  if (plan.weights_bytes + plan.activation_bytes > plan.available_bytes) {
    return needs.is_exclusive ? "share the model out with --tensor-parallel, or hold it with --compute=fp8"
                              : "the weights alone do not fit: compute on a machine with more memory, or quantise them";
  }
  std::string lower = "lower --max-context";
  if (!IsDense(needs.selection)) lower += ", or the budget or pool_factor of --selection";
  if (needs.slot_memory_bytes > 0) lower += ", or --slot-memory";
  if (plan.host_slot_pages > 0) lower += ", or --slot-host-memory, whose index lies in the GPU's memory";
  if (needs.prefill_memory_bytes > 0) lower += ", or --prefill-memory";
  if (needs.prefill_mode != PrefillMode::kLayered) lower += "; --prefill=layered keeps less of a prompt";
  return lower;
}

}  // namespace

std::string MemoryPlan::ToString() const {
  return absl::StrCat(
      "weights ", Mib(weights_bytes), " + resident KV ", Mib(slot_bytes), " (", slot_pages - host_slot_pages,
      " slot pages, up to ", max_running, " sequences)",
      host_slot_pages > 0
          ? absl::StrCat(" and ", host_slot_pages, " more in ", Mib(host_slot_bytes), " of pinned host memory")
          : "",
      index_bytes > 0 ? absl::StrCat(" + index of keys ", Mib(index_bytes)) : "", " + prefill KV ", Mib(prefill_bytes),
      state_bytes > 0 ? absl::StrCat(" + states ", Mib(state_bytes)) : "", " + activations ", Mib(activation_bytes),
      " = ", Mib(total_bytes()), " of ", Mib(available_bytes), " of ", memory_name, " available");
}

absl::StatusOr<MemoryPlan> PlanMemory(const MemoryNeeds& needs, uint64_t available_bytes) {
  MemoryPlan plan;
  plan.weights_bytes = needs.weights_bytes;
  plan.activation_bytes = needs.activation_bytes;
  plan.state_bytes = needs.state_bytes_per_sequence * needs.max_running;
  plan.available_bytes = available_bytes;
  plan.max_running = needs.max_running;
  plan.memory_name = needs.memory_name;
  plan.parts = needs.parts;

  const uint64_t page_bytes = kSlotPageTokens * needs.layout.row_bytes();
  const uint64_t index_page_bytes = kSlotPageTokens * needs.index_bytes_per_row;
  const uint64_t pages_per_sequence = PagesPerSequence(needs, needs.max_context_tokens);
  plan.prefill_mode = needs.prefill_mode;
  PrefillSizing sizing{.mode = needs.prefill_mode,
                       .memory_bytes = needs.prefill_memory_bytes == 0 ? std::numeric_limits<size_t>::max()
                                                                       : needs.prefill_memory_bytes * needs.parts,
                       .hidden_size = needs.hidden_size,
                       .parts = needs.parts};
  const uint64_t longest_prefill = sizing.BytesNeeded(needs.layout, needs.max_context_tokens) / needs.parts;
  plan.prefill_bytes = needs.prefill_memory_bytes != 0
                           ? needs.prefill_memory_bytes
                           : std::max(longest_prefill, std::min(2 * longest_prefill, available_bytes / 5));
  const uint64_t wanted_pages = pages_per_sequence * needs.max_running;
  uint64_t slot_bytes = needs.slot_memory_bytes, host_pages = needs.slot_host_memory_bytes / page_bytes;
  if (slot_bytes == 0) {
    const uint64_t others = plan.weights_bytes + plan.activation_bytes + plan.state_bytes + plan.prefill_bytes;
    const uint64_t rest = available_bytes > others ? available_bytes - others : 0;
    const uint64_t most_of_rest = rest / 10 * 9;
    const uint64_t both = needs.is_exclusive ? most_of_rest : std::min(most_of_rest, available_bytes * 2 / 5);
    host_pages = std::min(host_pages, HostPagesBehind(needs, both, page_bytes, index_page_bytes));
    const uint64_t rest_of_both = both - std::min(both, host_pages * index_page_bytes);
    const uint64_t most = rest_of_both / (page_bytes + index_page_bytes) * page_bytes;
    const uint64_t least = host_pages > 0 ? 0 : pages_per_sequence * page_bytes;
    slot_bytes = std::min(wanted_pages * page_bytes, std::max(most, least));
  }
  constexpr uint64_t kMostSlots = std::numeric_limits<uint32_t>::max();
  const uint64_t front_pages = std::min(slot_bytes / page_bytes, kMostSlots / kSlotPageTokens / needs.parts);
  if (front_pages >= wanted_pages) host_pages = 0;
  host_pages = std::min({host_pages, wanted_pages, kMostSlots / kSlotPageTokens - front_pages});
  plan.host_slot_pages = static_cast<uint32_t>(host_pages);
  plan.host_slot_bytes = host_pages * page_bytes;
  plan.slot_pages = static_cast<uint32_t>(front_pages + host_pages);
  plan.slot_bytes = front_pages * page_bytes;
  plan.index_bytes = plan.slot_pages * index_page_bytes;
  const uint64_t least_slots = needs.slot_memory_bytes != 0 ? plan.slot_bytes + plan.index_bytes
                                                            : pages_per_sequence * (page_bytes + index_page_bytes);
  plan.least_bytes = plan.weights_bytes + plan.activation_bytes + plan.state_bytes + least_slots +
                     (needs.prefill_memory_bytes != 0 ? needs.prefill_memory_bytes : longest_prefill);

  if (plan.slot_pages < pages_per_sequence) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot memory of ", Mib(slot_bytes), " cannot hold one sequence of ", needs.max_context_tokens,
                     " tokens, which needs ", pages_per_sequence, " pages of ", page_bytes,
                     " bytes: raise --slot-memory, or lower --max-context or the budget"));
  }
  if (plan.host_slot_pages > 0 && RunningSequences(needs, plan, needs.max_context_tokens) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "slot memory of ", Mib(plan.slot_bytes), " and ", Mib(plan.host_slot_bytes),
        " of the host's cannot hold one sequence of ", needs.max_context_tokens,
        " tokens, of which sinks, recent rows, answer and copies of selected rows lie in the "
        "GPU's: raise --slot-memory or --slot-host-memory, or lower --max-context, the budget or pool_factor"));
  }
  if (plan.prefill_bytes < longest_prefill) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prefill memory of ", Mib(plan.prefill_bytes), " cannot hold a prompt of ", needs.max_context_tokens,
        " tokens, which needs ", Mib(longest_prefill), ": raise --prefill-memory or lower --max-context"));
  }
  if (plan.total_bytes() > available_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the model does not fit: ", plan.ToString(), "; ",
                                                     Mib(plan.total_bytes() - available_bytes),
                                                     " are missing: ", WhatToLower(needs, plan)));
  }
  return plan;
}

SlotTiers TiersOf(const MemoryNeeds& needs, const MemoryPlan& plan) {
  return {.pages = {.front = plan.slot_pages - plan.host_slot_pages, .host = plan.host_slot_pages},
          .staging_slots = needs.selects_in_place ? needs.staging_slots : 0};
}

uint32_t RunningSequences(const MemoryNeeds& needs, const MemoryPlan& plan, uint32_t positions) {
  const uint32_t pages = std::max<uint32_t>(PagesPerSequence(needs, positions), 1);
  if (plan.host_slot_pages == 0) return std::min(plan.max_running, plan.slot_pages / pages);
  // Their prompts are nearly all of them. As the engine places them (PlaceSlots).
  const SlotTiers tiers = TiersOf(needs, plan);
  const SlotDemand demand =
      DemandOf(needs.layout,
               SpreadPlacement(needs.layout, needs.selection, positions, positions,
                               needs.selects_in_place ? SlotOrder::kByPosition : SlotOrder::kParts, tiers),
               pages);
  SlotPages free = tiers.pages;
  uint32_t sequences = 0;
  for (; sequences < plan.max_running && demand.FitsIn(free, 0); ++sequences) {
    const bool spreads = demand.may_spread() && demand.spread.front <= free.front && demand.spread.host <= free.host;
    const bool in_front = pages <= free.front && (demand.LeavesRoomToStage(free) || !spreads);
    free.front -= in_front ? pages : demand.spread.front;
    free.host -= in_front ? 0 : demand.spread.host;
  }
  return sequences;
}

uint64_t AvailableMemoryBytes() {
  uint64_t available = std::numeric_limits<uint64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, rest; meminfo >> key;) {
    if (key == "MemAvailable:") {
      uint64_t kib = 0;
      if (meminfo >> kib) available = kib * 1024;
      break;
    }
    std::getline(meminfo, rest);
  }
  uint64_t limit = 0, used = 0;
  std::ifstream limit_file("/sys/fs/cgroup/memory.max"), used_file("/sys/fs/cgroup/memory.current");
  if (limit_file >> limit && used_file >> used) available = std::min(available, limit > used ? limit - used : 0);
  return available;
}

}  // namespace winnow
