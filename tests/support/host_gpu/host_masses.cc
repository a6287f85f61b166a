#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "common/base/kv_layout.h"
#include "tests/support/host_gpu/host_exchange.h"
#include "tests/support/host_gpu/host_numbers.h"

namespace winnow::test {
namespace {

using device::Stream;

double MassOfList(const device::AttendedMassParams& p, size_t index, uint32_t position) {
  const device::SelectionList& list = p.lists[index];
  std::vector<bool> attended(position + 1);
  for (uint32_t row = 0; row <= position; ++row) attended[row] = row < list.first || row >= list.last;
  if (p.residency != nullptr) {
    const device::ResidencyList& residency = p.residency[index];
    for (uint32_t slot = 0; slot < residency.pool_slots; ++slot) {
      if (residency.last_plan[slot] == *p.plan) attended[residency.position_of[slot]] = true;
    }
  } else {
    for (uint32_t i = 0; i < p.counts[index * p.count_stride]; ++i)
      attended[p.selected[index * p.max_budget + i]] = true;
  }
  double mean = 0;
  for (int g = 0; g < p.group; ++g) {
    const float* query = p.queries + (index * p.group + g) * p.head_dim;
    std::vector<double> scores(position + 1);
    for (uint32_t row = 0; row <= position; ++row) {
      const std::vector<float> key = KeyAt(p, list, row);
      scores[row] = p.scale * std::inner_product(key.begin(), key.end(), query, 0.0);
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    double all = 0, held = 0;
    for (uint32_t row = 0; row <= position; ++row) {
      all += std::exp(scores[row] - most);
      held += attended[row] ? std::exp(scores[row] - most) : 0;
    }
    mean += held / all / p.group;
  }
  return mean;
}

void AttendedMass(Stream, const device::AttendedMassParams& p) {
  for (size_t index = 0; index < static_cast<size_t>(p.num_rows) * p.num_kv_heads; ++index) {
    const size_t row = index / p.num_kv_heads;
    const uint32_t position = p.positions[row];
    const device::SelectionList& list = p.lists[index];
    const bool selects = list.last > list.first && list.last - list.first > list.budget;
    const bool measures = position != device::kNoPosition && selects && device::MeasuresAt(p, row, position);
    const device::MeasuredMass mass = {*p.plan,
                                       measures ? static_cast<float>(MassOfList(p, index, position)) : std::nanf("")};
    p.masses[index] = mass;
    if (p.peer_masses != nullptr && position != device::kNoPosition) {
      p.peer_masses[*p.plan % 2 * p.peer_stride + index] = mass;
    }
  }
}

uint64_t DigestOfRow(const void* pool, size_t row, size_t row_bytes, uint64_t key) {
  uint64_t sum = 0;
  for (size_t word = 0; word < row_bytes / sizeof(uint64_t); ++word) {
    uint64_t value;
    std::memcpy(&value, static_cast<const std::byte*>(pool) + row * row_bytes + word * sizeof value, sizeof value);
    sum += value * device::DigestFactor(word);
  }
  return sum * device::DigestFactor(~key);
}

void StoredDigest(Stream, const device::StoredDigestParams& p) {
  const uint32_t plan = *p.plan.plan;
  for (int index = 0; index < p.plan.num_rows * p.plan.num_kv_heads; ++index) {
    const uint32_t position = p.plan.positions[index / p.plan.num_kv_heads];
    if (position == device::kNoPosition) continue;
    const int64_t entry = plan % p.plan.num_layers * p.plan.layer_lists + index;
    const device::SelectionList& list = p.lists[entry];
    uint64_t sum = 0;
    const auto add = [&](uint32_t row, uint64_t key) {
      const size_t at = size_t{p.blocks[list.first_block + row / kBlockTokens]} * kBlockTokens + row % kBlockTokens;
      sum += DigestOfRow(p.row_pool, at, p.plan.row_bytes, key);
    };
    for (uint32_t slot = 0; slot < p.residency[entry].pool_slots; ++slot) {
      if (p.residency[entry].last_plan[slot] == plan) add(p.residency[entry].position_of[slot], slot);
    }
    for (uint32_t row = 0; row < std::min(list.first, position + 1); ++row) add(row, device::kSinkKey + row);
    for (uint32_t row = list.last; row <= position; ++row) add(row, device::kRecentKey + row);
    p.digests[plan % 2 * p.odd_digests + index] = {sum, plan, position + 1 - list.last};
  }
}

void AttendedDigest(Stream, const device::AttendedDigestParams& p) {
  const uint32_t plan = *p.plan.plan;
  for (int index = 0; index < p.plan.num_rows * p.plan.num_kv_heads; ++index) {
    if (p.plan.positions[index / p.plan.num_kv_heads] == device::kNoPosition) continue;
    const device::AttentionList& list = p.lists[plan % p.plan.num_layers * p.plan.layer_lists + index];
    uint64_t sum = 0;
    const auto add = [&](uint32_t local, uint64_t key) {
      const size_t slot = size_t{p.pages[list.first_page + local / kSlotPageTokens]} * kSlotPageTokens;
      sum += DigestOfRow(p.slot_pool, slot + local % kSlotPageTokens, p.plan.row_bytes, key);
    };
    for (uint32_t i = 0; i < list.selected_count; ++i) {
      add(list.pool_base + p.selected[list.selected_first + i], p.selected[list.selected_first + i]);
    }
    for (uint32_t i = 0; i < list.sinks; ++i) add(i, device::kSinkKey + i);
    for (uint32_t i = 0; i < list.recent_count; ++i) {
      const uint32_t row = list.recent_begin + i;
      add(list.ring_base + row % list.ring_tokens, device::kRecentKey + row);
    }
    p.digests[index] = {sum, plan, list.recent_count};
  }
}

}  // namespace

device::AttendedMassKernels HostAttendedMassKernels() {
  device::AttendedMassKernels kernels{};
  kernels.mass_scratch_bytes = [](const device::AttendedMassParams&) { return size_t{256}; };
  kernels.attended_mass = AttendedMass;
  return kernels;
}

device::DigestKernels HostDigestKernels() {
  device::DigestKernels kernels{};
  kernels.stored_digest = StoredDigest;
  kernels.attended_digest = AttendedDigest;
  return kernels;
}

}  // namespace winnow::test
