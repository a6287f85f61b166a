#include "tests/support/host_gpu/host_exchange.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "common/selection/selection_spec.h"
#include "kernels/cpu/quantize.h"
#include "kernels/kernel_table.h"

namespace winnow::test {

float FromBf16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

namespace {

using cuda::Stream;

// e4m3 without infinities: 448 is the greatest.
float FromF8(uint8_t value) {
  const int exponent = value >> 3 & 15, mantissa = value & 7;
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return static_cast<float>(value >> 7 != 0 ? -size : size);
}
uint8_t ToF8(float value) {
  static const std::array<float, 127> sizes = [] {
    std::array<float, 127> all;
    for (size_t code = 0; code < all.size(); ++code) all[code] = FromF8(static_cast<uint8_t>(code));
    return all;
  }();
  const float size = std::abs(value);
  auto above = std::lower_bound(sizes.begin(), sizes.end() - 1, size);
  if (above != sizes.begin() && size - *(above - 1) < *above - size) --above;
  return static_cast<uint8_t>((above - sizes.begin()) | (value < 0 ? 128 : 0));
}

std::atomic_ref<uint32_t> Word(const uint32_t* word) {
  return std::atomic_ref(*const_cast<uint32_t*>(word));
}

void Raise(Stream, const cuda::RaiseParams& p) {
  Word(p.flag).store(*p.value, std::memory_order_release);
}

void Wait(Stream, const cuda::WaitParams& p) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(4 * uint64_t{p.timeout_us});
  while (static_cast<int32_t>(Word(p.flag).load(std::memory_order_acquire) - *p.value) < 0) {
    if (p.error != nullptr && Word(p.error).load() != 0) return;
    const bool aborted = p.abort != nullptr && Word(p.abort).load() != 0;
    if (aborted || std::chrono::steady_clock::now() > end) {
      if (p.error != nullptr) Word(p.error).store(aborted ? cuda::kWaitAborted : cuda::kWaitTimedOut);
      return;
    }
    sched_yield();
  }
}

// The nearest bf16 that is not less, or not greater.
uint16_t RoundTowards(float value, bool up) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const bool away_from_zero = up == (value > 0);
  return static_cast<uint16_t>((bits >> 16) + (away_from_zero && (bits & 0xffff) != 0 ? 1 : 0));
}

// Of rows of int8, whose bounds are rounded outwards.
void AppendInt8ToBounds(const cuda::AppendParams& p, uint32_t block, uint32_t position, size_t row) {
  const size_t dim = p.head_dim, page = position % kBlockTokens / p.page_tokens;
  const auto* const codes = static_cast<const int8_t*>(p.row_pool) + row * 2 * dim;
  const float own = p.row_scales[2 * row], scale = std::isfinite(own) ? own : 0;
  uint16_t* const greatest =
      static_cast<uint16_t*>(p.bounds) + (size_t{block} * (kBlockTokens / p.page_tokens) + page) * 2 * dim;
  uint16_t* const least = greatest + dim;
  const bool begins = position % p.page_tokens == 0;
  for (size_t d = 0; d < dim; ++d) {
    const float key = static_cast<float>(codes[d]) * scale;
    if (begins || key > FromBf16(greatest[d])) greatest[d] = RoundTowards(key, true);
    if (begins || key < FromBf16(least[d])) least[d] = RoundTowards(key, false);
  }
}

// Maxima and minima of a page's keys grow with each; the page's first begins them.
void AppendToBounds(const cuda::AppendParams& p, uint32_t block, uint32_t position, const uint16_t* key) {
  const size_t dim = p.head_dim, page = position % kBlockTokens / p.page_tokens;
  uint16_t* const greatest =
      static_cast<uint16_t*>(p.bounds) + (size_t{block} * (kBlockTokens / p.page_tokens) + page) * 2 * dim;
  uint16_t* const least = greatest + dim;
  for (size_t d = 0; d < dim; ++d) {
    const bool begins = position % p.page_tokens == 0;
    if (begins || FromBf16(key[d]) > FromBf16(greatest[d])) greatest[d] = key[d];
    if (begins || FromBf16(key[d]) < FromBf16(least[d])) least[d] = key[d];
  }
}

void Append(Stream, const cuda::AppendParams& p) {
  const size_t dim = p.head_dim, row_elements = 2 * dim;
  for (int list = 0; list < p.num_lists; ++list) {
    if (p.positions[list] == cuda::kNoPosition) continue;
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
      for (size_t d = 0; d < dim; ++d) most = std::max(most, std::abs(FromBf16(from[d])));
      p.key_scales[row] = most > 0 ? most / 448 : 1;
      for (size_t d = 0; d < dim; ++d) {
        static_cast<uint8_t*>(p.key_copy)[row * dim + d] = ToF8(FromBf16(from[d]) / p.key_scales[row]);
      }
    }
  }
}

template <typename Params>
std::vector<float> KeyAt(const Params& p, const cuda::SelectionList& list, uint32_t position) {
  const size_t block = p.blocks[list.first_block + position / kBlockTokens], in_block = position % kBlockTokens;
  const auto* key =
      static_cast<const std::byte*>(p.keys.keys) + block * p.keys.block_stride + in_block * p.keys.key_stride;
  std::vector<float> out(p.head_dim);
  for (int d = 0; d < p.head_dim; ++d) {
    if (p.keys.dtype == Dtype::kBf16) {
      out[d] = FromBf16(reinterpret_cast<const uint16_t*>(key)[d]);
      continue;
    }
    const float scale = p.keys.scales[(block * kBlockTokens + in_block) * p.keys.scale_stride];
    out[d] = p.keys.dtype == Dtype::kI8 ? reinterpret_cast<const int8_t*>(key)[d] * (std::isfinite(scale) ? scale : 0)
                                        : FromF8(reinterpret_cast<const uint8_t*>(key)[d]) * scale;
  }
  return out;
}

// What keys are scored with: of int8 the query is rounded as they are.
template <typename Params>
std::vector<float> ScoringQuery(const Params& p, const float* query) {
  std::vector<float> out(query, query + p.head_dim);
  if (p.keys.dtype != Dtype::kI8) return out;
  std::vector<int8_t> codes((p.head_dim + 7) / 8 * 8);
  const float scale = QuantizeInt8(query, p.head_dim, codes.data());
  for (int d = 0; d < p.head_dim; ++d) out[d] = static_cast<float>(codes[d]) * scale;
  return out;
}

// Two-stage: rows whose keys are scored, in granules of 16.
std::vector<bool> ScoredRows(const cuda::SelectParams& p, const cuda::SelectionList& list) {
  constexpr uint32_t kGranule = 16;
  const uint32_t selectable = list.last - list.first, wanted = CandidateRows(p, list.budget);
  std::vector<bool> scored(list.num_keys, true);
  if (!IsTwoStage(p) || selectable <= wanted || selectable < p.score_all_below) return scored;
  const uint32_t page = p.pages.page_tokens, tail = list.last / page * page;
  std::vector<float> best(tail / page, -INFINITY);
  for (uint32_t i = 0; i < best.size(); ++i) {
    const size_t block = p.blocks[list.first_block + i * page / kBlockTokens];
    const auto* const greatest = static_cast<const uint16_t*>(p.pages.bounds) +
                                 (block * (kBlockTokens / page) + i * page % kBlockTokens / page) * 2 * p.head_dim;
    for (int g = 0; g < p.group; ++g) {
      const float* const query = p.queries + (static_cast<size_t>(list.query) * p.group + g) * p.head_dim;
      float bound = 0;
      for (int d = 0; d < p.head_dim; ++d) {
        bound += std::max(query[d], 0.0f) * FromBf16(greatest[d]) +
                 std::min(query[d], 0.0f) * FromBf16(greatest[p.head_dim + d]);
      }
      best[i] = std::max(best[i], bound);
    }
  }
  std::vector<uint32_t> order(best.size() - list.first / page);
  std::iota(order.begin(), order.end(), list.first / page);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return best[a] > best[b]; });
  std::vector<bool> granules((list.num_keys + kGranule - 1) / kGranule);
  const auto take = [&](uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row) granules[row / kGranule] = true;
  };
  take(0, list.first);
  take(tail, list.num_keys);
  uint32_t held = list.last - tail;  // the page that the recent window begins in is one of them
  for (size_t i = 0; i < order.size() && held < wanted; ++i) {
    const uint32_t begin = std::max(order[i] * page, list.first), end = (order[i] + 1) * page;
    take(begin, end);
    held += end - begin;
  }
  for (uint32_t row = 0; row < list.num_keys; ++row) scored[row] = granules[row / kGranule];
  return scored;
}

void SelectList(const cuda::SelectParams& p, const cuda::SelectionList& list, uint32_t* selected, uint32_t* count) {
  *count = 0;
  if (list.last <= list.first || list.budget == 0) return;
  const uint32_t selectable = list.last - list.first;
  std::vector<uint32_t> order(selectable);
  std::iota(order.begin(), order.end(), list.first);
  if (!(p.takes_all_that_fit && selectable <= list.budget)) {
    WINNOW_CHECK(p.aggregation == cuda::Aggregation::kSoftmaxSum);
    const std::vector<bool> scored = ScoredRows(p, list);
    std::erase_if(order, [&](uint32_t row) { return !scored[row]; });
    std::vector<double> mass(list.num_keys);
    std::vector<double> scores(list.num_keys);
    for (int g = 0; g < p.group; ++g) {
      const std::vector<float> query =
          ScoringQuery(p, p.queries + (static_cast<size_t>(list.query) * p.group + g) * p.head_dim);
      for (uint32_t k = 0; k < list.num_keys; ++k) {
        if (!scored[k]) {
          scores[k] = -INFINITY;
          continue;
        }
        const std::vector<float> key = KeyAt(p, list, k);
        scores[k] = p.scale * std::inner_product(key.begin(), key.end(), query.begin(), 0.0);
      }
      const double most = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - most);
      for (uint32_t k = 0; k < list.num_keys; ++k) mass[k] += scores[k] / sum / p.group;
    }
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return mass[a] > mass[b]; });
    order.resize(std::min<size_t>(order.size(), list.budget));
    if (p.min_mass > 0) {
      double held = std::accumulate(mass.begin(), mass.end(), 0.0);
      for (uint32_t k = list.first; k < list.last; ++k) held -= mass[k];
      size_t taken = 0;
      while (taken < order.size() && held < p.min_mass) held += mass[order[taken++]];
      order.resize(taken);
    }
    std::sort(order.begin(), order.end());
  }
  std::copy(order.begin(), order.end(), selected);
  *count = static_cast<uint32_t>(order.size());
}

void Select(Stream, const cuda::SelectParams& p) {
  for (int list = 0; list < p.num_lists; ++list) {
    SelectList(p, p.lists[list], p.selected + static_cast<size_t>(list) * p.max_budget, p.counts + list);
  }
}

void DiffList(const cuda::DiffParams& p, size_t i, uint32_t plan) {
  if (p.list_positions != nullptr && p.list_positions[i] == cuda::kNoPosition) {
    p.missing_counts[i] = 0;
    return;
  }
  const cuda::ResidencyList& list = p.residency[i];
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

void Diff(Stream, const cuda::DiffParams& p) {
  const uint32_t plan = p.plan_ptr != nullptr ? *p.plan_ptr : p.plan;
  for (int list = 0; list < p.num_lists; ++list) DiffList(p, list, plan);
}

// Once the file that $WINNOW_HOST_GPU_FLIP names is there, a bit of each row is lost on its way.
bool LosesBits() {
  const char* const path = std::getenv("WINNOW_HOST_GPU_FLIP");
  return path != nullptr && access(path, F_OK) == 0;
}

void Push(Stream, const cuda::PushParams& p) {
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

void Gather(Stream, const void* row_pool, size_t row_bytes, const cuda::SelectionList* lists, const uint32_t* blocks,
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

double MassOfList(const cuda::AttendedMassParams& p, size_t index, uint32_t position) {
  const cuda::SelectionList& list = p.lists[index];
  std::vector<bool> attended(position + 1);
  for (uint32_t row = 0; row <= position; ++row) attended[row] = row < list.first || row >= list.last;
  if (p.residency != nullptr) {
    const cuda::ResidencyList& residency = p.residency[index];
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

void AttendedMass(Stream, const cuda::AttendedMassParams& p) {
  for (size_t index = 0; index < static_cast<size_t>(p.num_rows) * p.num_kv_heads; ++index) {
    const size_t row = index / p.num_kv_heads;
    const uint32_t position = p.positions[row];
    const cuda::SelectionList& list = p.lists[index];
    const bool selects = list.last > list.first && list.last - list.first > list.budget;
    const bool measures = position != cuda::kNoPosition && selects && cuda::MeasuresAt(p, row, position);
    const cuda::MeasuredMass mass = {*p.plan,
                                     measures ? static_cast<float>(MassOfList(p, index, position)) : std::nanf("")};
    p.masses[index] = mass;
    if (p.peer_masses != nullptr && position != cuda::kNoPosition) {
      p.peer_masses[*p.plan % 2 * p.peer_stride + index] = mass;
    }
  }
}

uint64_t DigestOfRow(const void* pool, size_t row, size_t row_bytes, uint64_t key) {
  uint64_t sum = 0;
  for (size_t word = 0; word < row_bytes / sizeof(uint64_t); ++word) {
    uint64_t value;
    std::memcpy(&value, static_cast<const std::byte*>(pool) + row * row_bytes + word * sizeof value, sizeof value);
    sum += value * cuda::DigestFactor(word);
  }
  return sum * cuda::DigestFactor(~key);
}

void StoredDigest(Stream, const cuda::StoredDigestParams& p) {
  const uint32_t plan = *p.plan.plan;
  for (int index = 0; index < p.plan.num_rows * p.plan.num_kv_heads; ++index) {
    const uint32_t position = p.plan.positions[index / p.plan.num_kv_heads];
    if (position == cuda::kNoPosition) continue;
    const int64_t entry = plan % p.plan.num_layers * p.plan.layer_lists + index;
    const cuda::SelectionList& list = p.lists[entry];
    uint64_t sum = 0;
    const auto add = [&](uint32_t row, uint64_t key) {
      const size_t at = size_t{p.blocks[list.first_block + row / kBlockTokens]} * kBlockTokens + row % kBlockTokens;
      sum += DigestOfRow(p.row_pool, at, p.plan.row_bytes, key);
    };
    for (uint32_t slot = 0; slot < p.residency[entry].pool_slots; ++slot) {
      if (p.residency[entry].last_plan[slot] == plan) add(p.residency[entry].position_of[slot], slot);
    }
    for (uint32_t row = 0; row < std::min(list.first, position + 1); ++row) add(row, cuda::kSinkKey + row);
    for (uint32_t row = list.last; row <= position; ++row) add(row, cuda::kRecentKey + row);
    p.digests[plan % 2 * p.odd_digests + index] = {sum, plan, position + 1 - list.last};
  }
}

void AttendedDigest(Stream, const cuda::AttendedDigestParams& p) {
  const uint32_t plan = *p.plan.plan;
  for (int index = 0; index < p.plan.num_rows * p.plan.num_kv_heads; ++index) {
    if (p.plan.positions[index / p.plan.num_kv_heads] == cuda::kNoPosition) continue;
    const cuda::AttentionList& list = p.lists[plan % p.plan.num_layers * p.plan.layer_lists + index];
    uint64_t sum = 0;
    const auto add = [&](uint32_t local, uint64_t key) {
      const size_t slot = size_t{p.pages[list.first_page + local / kSlotPageTokens]} * kSlotPageTokens;
      sum += DigestOfRow(p.slot_pool, slot + local % kSlotPageTokens, p.plan.row_bytes, key);
    };
    for (uint32_t i = 0; i < list.selected_count; ++i) {
      add(list.pool_base + p.selected[list.selected_first + i], p.selected[list.selected_first + i]);
    }
    for (uint32_t i = 0; i < list.sinks; ++i) add(i, cuda::kSinkKey + i);
    for (uint32_t i = 0; i < list.recent_count; ++i) {
      const uint32_t row = list.recent_begin + i;
      add(list.ring_base + row % list.ring_tokens, cuda::kRecentKey + row);
    }
    p.digests[index] = {sum, plan, list.recent_count};
  }
}

void RotateQueries(Stream, const cuda::RotateQueriesParams& p) {
  const KernelTable& cpu = **CpuKernels();
  const size_t features = static_cast<size_t>(p.num_heads) * p.head_dim;
  std::vector<float> query(features);
  for (int row = 0; row < p.num_rows; ++row) {
    if (p.positions[row] == cuda::kNoPosition) continue;
    for (size_t i = 0; i < features; ++i)
      query[i] = p.queries[row * features + i] + (p.bias == nullptr ? 0 : p.bias[i]);
    for (int head = 0; head < p.num_heads && p.norm_weight != nullptr; ++head) {
      float* values = query.data() + static_cast<size_t>(head) * p.head_dim;
      const double squares = std::inner_product(values, values + p.head_dim, values, 0.0);
      const double factor = 1 / std::sqrt(squares / p.head_dim + p.norm_epsilon);
      for (int d = 0; d < p.head_dim; ++d) values[d] = static_cast<float>(values[d] * factor) * p.norm_weight[d];
    }
    cpu.rotate({.q_pre_rope = query.data(),
                .num_rows = 1,
                .num_heads = p.num_heads,
                .head_dim = p.head_dim,
                .positions = p.positions + row,
                .rope_inv_freq = p.rope.inv_freq,
                .rope_attention_factor = p.rope.attention_factor,
                .q = p.out + row * features});
  }
}

void Rotate(const cuda::RopeParams& rope, uint32_t position, int head_dim, const float* query, float* out) {
  (**CpuKernels())
      .rotate({.q_pre_rope = query,
               .num_rows = 1,
               .num_heads = 1,
               .head_dim = head_dim,
               .positions = &position,
               .rope_inv_freq = rope.inv_freq,
               .rope_attention_factor = rope.attention_factor,
               .q = out});
}

void StoreQueries(Stream, const cuda::StoreQueriesParams& p) {
  for (int item = 0; item < p.num_rows * p.num_heads; ++item) {
    const int row = item / p.num_heads;
    const uint32_t position = p.positions[row];
    if (position == cuda::kNoPosition) continue;
    const float* query = p.queries + static_cast<size_t>(item) * p.head_dim;
    float* out = p.rings.queries + p.sequences[row] * p.rings.sequence_stride +
                 (static_cast<size_t>(position % p.rings.capacity) * p.num_heads + item % p.num_heads) * p.head_dim;
    if (p.rings.rotated) {
      Rotate(p.rope, position, p.head_dim, query, out);
    } else {
      std::copy_n(query, p.head_dim, out);
    }
  }
}

// Gauss-Jordan elimination of (X X^T + lambda I) v = X y, which is positive definite.
std::vector<double> Blend(const std::vector<const float*>& past, int head_dim, cuda::BlendWeights weights) {
  const size_t w = past.size() - 1;
  std::vector<std::vector<double>> rows(w, std::vector<double>(w + 1));
  double trace = 0;
  for (size_t i = 0; i < w; ++i) {
    for (size_t j = 0; j <= w; ++j) rows[i][j] = std::inner_product(past[i], past[i] + head_dim, past[j], 0.0);
    trace += rows[i][i];
  }
  for (size_t i = 0; i < w; ++i) rows[i][i] += 1e-3 * trace / static_cast<double>(w);
  for (size_t k = 0; k < w; ++k) {
    for (size_t i = 0; i < w; ++i) {
      if (i == k) continue;
      const double factor = rows[i][k] / rows[k][k];
      for (size_t j = k; j <= w; ++j) rows[i][j] -= factor * rows[k][j];
    }
  }
  std::vector<double> v(w);
  for (size_t i = 0; i < w; ++i) v[i] = rows[i][w] / rows[i][i];
  WINNOW_CHECK(weights == cuda::BlendWeights::kSoftmax);
  const double most = *std::max_element(v.begin(), v.end());
  double sum = 0;
  for (double& value : v) sum += value = std::exp(value - most);
  for (double& value : v) value /= sum;
  return v;
}

void PredictQueries(Stream, const cuda::PredictQueriesParams& p) {
  for (int item = 0; item < p.num_rows * p.num_heads; ++item) {
    const int row = item / p.num_heads;
    const uint32_t position = p.positions[row], sequence = p.sequences[row];
    if (position == cuda::kNoPosition) continue;
    const uint32_t held = std::min(position - p.first_positions[sequence], p.rings.capacity);
    const uint32_t count = std::min(p.window + 1, held);
    std::vector<const float*> past;
    for (uint32_t at = position - count; at < position; ++at) {
      past.push_back(p.rings.queries + sequence * p.rings.sequence_stride +
                     (static_cast<size_t>(at % p.rings.capacity) * p.num_heads + item % p.num_heads) * p.head_dim);
    }
    std::vector<float> prediction(past.back(), past.back() + p.head_dim);
    if (count > 1) {
      const std::vector<double> v = Blend(past, p.head_dim, p.weights);
      for (int d = 0; d < p.head_dim; ++d) {
        double sum = 0;
        for (size_t i = 0; i < v.size(); ++i) sum += v[i] * past[i + 1][d];
        prediction[d] = static_cast<float>(sum);
      }
    }
    float* out = p.out + static_cast<size_t>(item) * p.head_dim;
    if (p.rings.rotated) {
      std::copy(prediction.begin(), prediction.end(), out);
    } else {
      Rotate(p.rope, position, p.head_dim, prediction.data(), out);
    }
  }
}

void BeginPlan(Stream, const cuda::BeginPlanParams& p) {
  ++*p.plan;
  for (int row = 0; row < p.num_rows; ++row) {
    const bool follows_step = p.step_positions != nullptr;
    uint32_t position = p.next_positions[row];
    if (position != cuda::kNoPosition) {
      if (follows_step) position = p.step_positions[row];
      if (!follows_step) ++p.next_positions[row];
    }
    p.positions[row] = position;
    for (int head = 0; head < p.num_kv_heads; ++head) {
      p.list_positions[row * p.num_kv_heads + head] = position;
      for (int layer = 0; layer < p.num_layers; ++layer) {
        cuda::SelectionList& list = p.lists[(static_cast<size_t>(layer) * p.max_rows + row) * p.num_kv_heads + head];
        const bool sits = position != cuda::kNoPosition;
        list.num_keys = sits ? position : 0;
        list.last = sits ? RecentStart(position, p.recent_tokens, list.first, kBlockTokens) : list.first;
      }
    }
  }
}

void TellCounts(Stream, const cuda::TellCountsParams& p) {
  for (int list = 0; list < p.num_lists; ++list) {
    if (p.list_positions[list] != cuda::kNoPosition) p.to[static_cast<size_t>(list) * p.stride] = p.counts[list];
  }
}

void BeginStep(Stream, const cuda::BeginStepParams& p) {
  ++*p.plan;
  for (int row = 0; row < p.num_rows; ++row) {
    const uint32_t position = p.positions[row] = p.next_positions[row];
    const bool sits = position != cuda::kNoPosition;
    if (sits) ++p.next_positions[row];
    if (sits && p.sample_rows != nullptr) ++p.sample_rows[row].token_index;
    for (int i = 0; i < p.num_layers * p.num_kv_heads; ++i) {
      const size_t index =
          (static_cast<size_t>(i / p.num_kv_heads) * p.max_rows + row) * p.num_kv_heads + i % p.num_kv_heads;
      cuda::AttentionList& list = p.lists[index];
      if (!sits) list.sinks = list.selected_count = list.recent_count = 0;
      if (!sits && p.kv_destinations != nullptr) p.kv_destinations[index] = nullptr;
      if (!sits) continue;
      const uint32_t layer_window = p.layer_windows == nullptr ? 0 : p.layer_windows[i / p.num_kv_heads];
      if (layer_window > 0) {
        list.sinks = list.selected_count = 0;
        list.recent_begin = position + 1 > layer_window ? position + 1 - layer_window : 0;
      } else if (p.window == cuda::RecentWindow::kSliding) {
        const cuda::RowWindow& window = p.windows[row];
        WINNOW_CHECK(window.reuse_interval == 1);
        list.sinks = std::min(window.sinks, position + 1);
        list.recent_begin = RecentStart(position, window.recent_tokens, window.sinks, kBlockTokens);
      }
      list.recent_count = position + 1 > list.recent_begin ? position + 1 - list.recent_begin : 0;
      const uint32_t local = list.ring_base + position % list.ring_tokens;
      const size_t slot =
          size_t{p.pages[list.first_page + local / kSlotPageTokens]} * kSlotPageTokens + local % kSlotPageTokens;
      if (p.kv_destinations == nullptr) continue;
      p.kv_destinations[index] = static_cast<std::byte*>(p.slot_pool) + slot * p.row_bytes;
    }
  }
}

void Publish(Stream, const cuda::PublishParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    std::memcpy(static_cast<std::byte*>(p.to) + row * p.to_stride,
                static_cast<const std::byte*>(p.from) + row * p.from_stride, p.row_bytes);
  }
  Raise(nullptr, {.flag = p.flag, .value = p.value});
}

void RaiseAll(Stream stream, const cuda::ExchangePeer* peers, size_t flag, const uint32_t* value) {
  for (int i = 0; i < cuda::kMaxExchangePeers; ++i) {
    if (peers[i].inbox == nullptr) continue;
    Raise(stream, {.flag = reinterpret_cast<uint32_t*>(peers[i].inbox + flag), .value = value});
  }
}

}  // namespace

void SendRows(Stream stream, const cuda::SendRowsParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    if (p.regions[row] == nullptr) continue;
    std::memcpy(static_cast<std::byte*>(p.regions[row]) + p.to + row * p.row_bytes,
                static_cast<const std::byte*>(p.from) + row * p.row_bytes, p.row_bytes);
  }
  RaiseAll(stream, p.peers, p.flag, p.value);
}

void Meet(Stream stream, const cuda::MeetParams& p) {
  RaiseAll(stream, p.peers, p.flag, p.value);
  for (int i = 0; i < cuda::kMaxExchangePeers; ++i) {
    const cuda::ExchangePeer& peer = p.peers[i];
    if (peer.inbox == nullptr) continue;
    Wait(stream, {.flag = peer.delta_flags + p.layer,
                  .value = p.value,
                  .abort = peer.abort,
                  .error = peer.error,
                  .timeout_us = p.timeout_us});
  }
}

cuda::DigestKernels HostDigestKernels() {
  cuda::DigestKernels kernels{};
  kernels.stored_digest = StoredDigest;
  kernels.attended_digest = AttendedDigest;
  return kernels;
}

cuda::AttendedMassKernels HostAttendedMassKernels() {
  cuda::AttendedMassKernels kernels{};
  kernels.mass_scratch_bytes = [](const cuda::AttendedMassParams&) { return size_t{256}; };
  kernels.attended_mass = AttendedMass;
  return kernels;
}

cuda::CacheKernels HostCacheKernels() {
  cuda::CacheKernels kernels{};
  kernels.append = Append;
  kernels.diff = Diff;
  kernels.push = Push;
  kernels.raise = Raise;
  kernels.wait = Wait;
  kernels.gather = Gather;
  return kernels;
}

cuda::PredictKernels HostPredictKernels() {
  cuda::PredictKernels kernels{};
  kernels.rotate_queries = RotateQueries;
  kernels.begin_plan = BeginPlan;
  kernels.store_queries = StoreQueries;
  kernels.predict_queries = PredictQueries;
  return kernels;
}

cuda::PageUnitKernels HostPageUnitKernels() {
  cuda::PageUnitKernels kernels{};
  kernels.tell_counts = TellCounts;
  return kernels;
}

cuda::SelectionKernels HostSelectionKernels() {
  cuda::SelectionKernels kernels{};
  kernels.select_scratch_bytes = [](const cuda::SelectParams&) { return size_t{256}; };
  kernels.select = Select;
  return kernels;
}

void AddHostStepKernels(cuda::StepKernels& kernels) {
  kernels.begin_step = BeginStep;
  kernels.publish = Publish;
  kernels.send_rows = SendRows;
  kernels.meet = Meet;
}

}  // namespace winnow::test
