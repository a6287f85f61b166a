#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/base/kv_layout.h"
#include "tests/support/host_gpu/host_exchange.h"
#include "tests/support/host_gpu/host_flags.h"
#include "tests/support/host_gpu/host_numbers.h"

namespace winnow::test {
namespace {

using device::Stream;

// The nearest bf16 that is not less, or not greater.
uint16_t RoundTowards(float value, bool up) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const bool away_from_zero = up == (value > 0);
  return static_cast<uint16_t>((bits >> 16) + (away_from_zero && (bits & 0xffff) != 0 ? 1 : 0));
}

uint16_t* PageBounds(const device::AppendParams& p, size_t block, size_t page) {
  const int64_t stride = device::PageBlockStride(p.page_block_stride, p.page_tokens, p.head_dim);
  return reinterpret_cast<uint16_t*>(static_cast<std::byte*>(p.bounds) + static_cast<int64_t>(block) * stride) +
         page * 2 * p.head_dim;
}

// Of rows of int8, whose bounds are rounded outwards.
void AppendInt8ToBounds(const device::AppendParams& p, uint32_t block, uint32_t position, size_t row) {
  const size_t dim = p.head_dim, page = position % kBlockTokens / p.page_tokens;
  const auto* const codes = static_cast<const int8_t*>(p.row_pool) + row * 2 * dim;
  const float own = p.row_scales[2 * row], scale = std::isfinite(own) ? own : 0;
  uint16_t* const greatest = PageBounds(p, block, page);
  uint16_t* const least = greatest + dim;
  const bool begins = position % p.page_tokens == 0;
  for (size_t d = 0; d < dim; ++d) {
    const float key = static_cast<float>(codes[d]) * scale;
    if (begins || key > Bf16ToF32(greatest[d])) greatest[d] = RoundTowards(key, true);
    if (begins || key < Bf16ToF32(least[d])) least[d] = RoundTowards(key, false);
  }
}

// Maxima and minima of a page's keys grow with each; the page's first begins them.
void AppendToBounds(const device::AppendParams& p, uint32_t block, uint32_t position, const uint16_t* key) {
  const size_t dim = p.head_dim, page = position % kBlockTokens / p.page_tokens;
  uint16_t* const greatest = PageBounds(p, block, page);
  uint16_t* const least = greatest + dim;
  for (size_t d = 0; d < dim; ++d) {
    const bool begins = position % p.page_tokens == 0;
    if (begins || Bf16ToF32(key[d]) > Bf16ToF32(greatest[d])) greatest[d] = key[d];
    if (begins || Bf16ToF32(key[d]) < Bf16ToF32(least[d])) least[d] = key[d];
  }
}

// The bounds of groups that rows complete, from their pages'.
void BoundGroups(Stream, const device::AppendParams& p) {
  const size_t dim = p.head_dim, per_block = kBlockTokens / p.page_tokens;
  const uint32_t rows = kGroupPages * p.page_tokens;
  for (int list = 0; list < p.num_lists; ++list) {
    if (p.positions[list] == device::kNoPosition) continue;
    const uint32_t first_block = p.lists[list].first_block;
    for (uint32_t group = p.positions[list] / rows; (group + 1) * rows <= p.positions[list] + p.rows_per_list;
         ++group) {
      auto* const bounds =
          static_cast<uint16_t*>(p.group_bounds) + (first_block / device::GroupBlocks(p.page_tokens) + group) * 2 * dim;
      for (uint32_t page = group * kGroupPages; page < (group + 1) * kGroupPages; ++page) {
        const size_t block = p.blocks[first_block + page / per_block];
        const uint16_t* const of_page = PageBounds(p, block, page % per_block);
        for (size_t d = 0; d < 2 * dim; ++d) {
          const float own = Bf16ToF32(of_page[d]), held = Bf16ToF32(bounds[d]);
          if (page % kGroupPages == 0 || (d < dim ? own > held : own < held)) bounds[d] = of_page[d];
        }
      }
    }
  }
}

void Append(Stream stream, const device::AppendParams& p) {
  const size_t dim = p.head_dim, row_elements = 2 * dim;
  for (int list = 0; list < p.num_lists; ++list) {
    if (p.positions[list] == device::kNoPosition) continue;
    for (int i = 0; i < p.rows_per_list; ++i) {
      const uint32_t position = p.positions[list] + i;
      const uint32_t block = p.blocks[p.lists[list].first_block + position / kBlockTokens];
      const size_t row = size_t{block} * kBlockTokens + position % kBlockTokens;
      if (p.row_scales != nullptr) {
        AppendInt8ToBounds(p, block, position, row);
        continue;
      }
      const auto* const stored = static_cast<const uint16_t*>(p.row_pool) + row * row_elements;
      const auto* from = p.rows == nullptr ? stored
                                           : static_cast<const uint16_t*>(p.rows) +
                                                 (static_cast<size_t>(list) * p.rows_per_list + i) * row_elements;
      if (p.row_pool != nullptr && p.rows != nullptr) {
        std::memcpy(static_cast<uint16_t*>(p.row_pool) + row * row_elements, from, row_elements * sizeof(uint16_t));
      }
      if (p.bounds != nullptr) AppendToBounds(p, block, position, from);
      if (p.key_copy == nullptr) continue;
      float most = 0;
      for (size_t d = 0; d < dim; ++d) most = std::max(most, std::abs(Bf16ToF32(from[d])));
      p.key_scales[row] = most > 0 ? most / 448 : 1;
      for (size_t d = 0; d < dim; ++d) {
        static_cast<uint8_t*>(p.key_copy)[row * dim + d] = ToF8(Bf16ToF32(from[d]) / p.key_scales[row]);
      }
    }
  }
  if (p.group_bounds != nullptr) BoundGroups(stream, p);
}

void AssignSlotsOfList(const device::AssignSlotsParams& p, size_t i, uint32_t plan) {
  if (p.list_positions != nullptr && p.list_positions[i] == device::kNoPosition) {
    p.missing_counts[i] = 0;
    return;
  }
  const device::ResidencyList& list = p.residency[i];
  if (list.position_of == nullptr) {
    std::copy_n(p.selected + i * p.max_budget, p.counts[i], p.pool_indices + i * p.max_budget);
    p.missing_counts[i] = 0;
    return;
  }
  const uint32_t count = std::min(p.counts[i], list.pool_slots);
  const uint32_t* selected = p.selected + i * p.max_budget;
  std::vector<uint32_t> missing, targets, victims;
  std::vector<bool> is_wanted(list.pool_slots);
  for (uint32_t entry = 0; entry < count; ++entry) {
    const auto* slot = std::find(list.position_of, list.position_of + list.pool_slots, selected[entry]);
    const auto index = static_cast<uint32_t>(slot - list.position_of);
    if (index == list.pool_slots) {
      missing.push_back(entry);
    } else {
      is_wanted[index] = true;
      p.pool_indices[i * p.max_budget + entry] = index;
      list.last_plan[index] = plan;
    }
  }
  for (uint32_t slot = 0; slot < list.pool_slots; ++slot) {
    if (list.position_of[slot] == ~0u && targets.size() < missing.size()) targets.push_back(slot);
    if (list.position_of[slot] != ~0u && !is_wanted[slot]) victims.push_back(slot);
  }
  std::stable_sort(victims.begin(), victims.end(),
                   [&](uint32_t a, uint32_t b) { return plan - list.last_plan[a] > plan - list.last_plan[b]; });
  victims.resize(missing.size() - targets.size());
  std::sort(victims.begin(), victims.end());
  targets.insert(targets.end(), victims.begin(), victims.end());
  for (size_t m = 0; m < missing.size(); ++m) {
    const uint32_t slot = targets[m], position = selected[missing[m]];
    list.position_of[slot] = position;
    list.last_plan[slot] = plan;
    p.pool_indices[i * p.max_budget + missing[m]] = slot;
    p.missing[i * p.max_budget + m] = position;
    p.missing_indices[i * p.max_budget + m] = slot;
  }
  p.missing_counts[i] = static_cast<uint32_t>(missing.size());
}

void AssignSlots(Stream, const device::AssignSlotsParams& p) {
  const uint32_t plan = p.plan_ptr != nullptr ? *p.plan_ptr : p.plan;
  for (int list = 0; list < p.num_lists; ++list) AssignSlotsOfList(p, list, plan);
}

// Once the file that $WINNOW_HOST_GPU_FLIP names is there, a bit of each row is lost on its way.
bool LosesBits() {
  const char* const path = std::getenv("WINNOW_HOST_GPU_FLIP");
  return path != nullptr && access(path, F_OK) == 0;
}

void Push(Stream, const device::PushParams& p) {
  const bool loses_bits = LosesBits();
  for (size_t list = 0; list < static_cast<size_t>(p.num_lists); ++list) {
    for (uint32_t m = 0; m < p.missing_counts[list]; ++m) {
      const uint32_t position = p.missing[list * p.max_budget + m];
      const uint32_t local = p.targets[list].pool_base + p.missing_indices[list * p.max_budget + m];
      const size_t slot =
          size_t{p.targets[list].pages[local / kSlotPageTokens]} * kSlotPageTokens + local % kSlotPageTokens;
      const size_t row = size_t{p.blocks[p.lists[list].first_block + position / kBlockTokens]} * kBlockTokens +
                         position % kBlockTokens;
      std::memcpy(static_cast<std::byte*>(p.targets[list].slot_pool) + slot * p.row_bytes,
                  static_cast<const std::byte*>(p.row_pool) + row * p.row_bytes, p.row_bytes);
      if (loses_bits) static_cast<std::byte*>(p.targets[list].slot_pool)[slot * p.row_bytes] ^= std::byte{1};
    }
    if (p.pushed_rows != nullptr) *p.pushed_rows += p.missing_counts[list];
    if (p.peer_pool_indices == nullptr) continue;
    if (p.targets[list].slot_pool == nullptr) continue;
    std::copy_n(p.pool_indices + list * p.max_budget, p.counts[list], p.peer_pool_indices + list * p.max_budget);
    p.peer_counts[list * p.peer_count_stride] = p.counts[list];
  }
  if (p.raise.flag != nullptr) Raise(nullptr, p.raise);
}

void Gather(Stream, const void* row_pool, size_t row_bytes, const device::SelectionList* lists, const uint32_t* blocks,
            const uint32_t* positions, const uint32_t* counts, int num_lists, uint32_t max_count, void* out) {
  for (size_t list = 0; list < static_cast<size_t>(num_lists); ++list) {
    for (uint32_t i = 0; i < counts[list]; ++i) {
      const uint32_t position = positions[list * max_count + i];
      const size_t row =
          size_t{blocks[lists[list].first_block + position / kBlockTokens]} * kBlockTokens + position % kBlockTokens;
      std::memcpy(static_cast<std::byte*>(out) + (list * max_count + i) * row_bytes,
                  static_cast<const std::byte*>(row_pool) + row * row_bytes, row_bytes);
    }
  }
}

}  // namespace

device::CacheKernels HostCacheKernels() {
  device::CacheKernels kernels{};
  kernels.append = Append;
  kernels.bound_groups = BoundGroups;
  kernels.assign_slots = AssignSlots;
  kernels.push = Push;
  kernels.raise = Raise;
  kernels.wait = Wait;
  kernels.gather = Gather;
  return kernels;
}

}  // namespace winnow::test
