#include "tests/support/host_gpu/host_attention.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/base/check.h"
#include "tests/support/host_gpu/host_cpu.h"
#include "tests/support/host_gpu/host_exchange.h"
#include "tests/support/host_gpu/host_numbers.h"

namespace winnow::test {
namespace {

using device::Stream;

size_t AttentionScratch(const device::DecodeAttentionParams&) {
  return 256;
}

// The rows of int8 of all lists, one list after the other, with the scales behind the codes, and the lists of these.
std::vector<std::byte> GatherInt8Rows(const device::DecodeAttentionParams& p,
                                      std::vector<std::vector<uint32_t>>& lists) {
  const size_t code_bytes = 2 * static_cast<size_t>(p.head_dim);
  const auto* const scales = static_cast<const float*>(p.kv_scales);
  std::vector<std::byte> rows;
  uint32_t number = 0;
  for (std::vector<uint32_t>& list : lists) {
    for (uint32_t& slot : list) {
      const auto* const codes = static_cast<const std::byte*>(p.slot_pool) + slot * code_bytes;
      const auto* const of_slot = reinterpret_cast<const std::byte*>(scales + 2 * size_t{slot});
      rows.insert(rows.end(), codes, codes + code_bytes);
      rows.insert(rows.end(), of_slot, of_slot + 2 * sizeof(float));
      slot = number++;
    }
  }
  return rows;
}

void DecodeAttention(Stream stream, const device::DecodeAttentionParams& p) {
  WINNOW_CHECK(p.kv_dtype == Dtype::kBf16 || p.kv_dtype == Dtype::kI8);
  if (p.sends.from != nullptr) SendRows(stream, p.sends);
  if (p.remote_flags.peers != nullptr) SignalAndWait(stream, p.remote_flags);
  const size_t num_lists = static_cast<size_t>(p.num_rows) * p.num_kv_heads;
  std::vector<std::vector<uint32_t>> lists(num_lists);
  std::vector<const uint32_t*> slots;
  std::vector<uint32_t> counts;
  size_t total = 0;
  for (size_t l = 0; l < num_lists; ++l) {
    const device::AttentionList& list = p.lists[l];
    for (uint32_t j = 0; j < list.count(); ++j) lists[l].push_back(list.SlotOfRow(j, p.selected, p.pages));
    WINNOW_CHECK(list.count() <= p.max_count);
    if (list.count() == 0) lists[l].push_back(0);  // of a row without a sequence: gives zeros
    slots.push_back(lists[l].data());
    counts.push_back(static_cast<uint32_t>(lists[l].size()));
    total += lists[l].size();
  }
  std::vector<std::byte> int8_rows;
  if (p.kv_dtype == Dtype::kI8) int8_rows = GatherInt8Rows(p, lists);
  const size_t heads = static_cast<size_t>(p.num_rows) * p.num_query_heads;
  const size_t group = p.num_query_heads / p.num_kv_heads;
  std::vector<float> out(heads * p.head_dim), lse(heads);
  std::vector<std::byte> scratch(DecodeAttentionScratchBytes(total * group, heads, p.head_dim));
  Cpu().decode_attention(Team(), {.q = p.q,
                                  .num_rows = p.num_rows,
                                  .num_query_heads = p.num_query_heads,
                                  .num_kv_heads = p.num_kv_heads,
                                  .head_dim = p.head_dim,
                                  .scale = p.scale,
                                  .slot_pool = int8_rows.empty() ? p.slot_pool : int8_rows.data(),
                                  .kv_dtype = p.kv_dtype,
                                  .row = p.row,
                                  .slots = slots.data(),
                                  .slot_counts = counts.data(),
                                  .out = out.data(),
                                  .lse = lse.data(),
                                  .scratch = scratch.data(),
                                  .sinks = p.sinks});
  for (size_t l = 0; l < num_lists; ++l) {
    if (p.lists[l].count() == 0) std::fill_n(out.begin() + l * group * p.head_dim, group * p.head_dim, 0.0f);
  }
  Store(out, p.out_dtype, p.out);
  if (p.lse != nullptr) std::copy(lse.begin(), lse.end(), p.lse);
}

void WidenRows(Stream, const device::WidenRowsParams& p) {
  const size_t codes = 2 * static_cast<size_t>(p.head_dim), row_bytes = RowLayout().bytes(p.head_dim, Dtype::kI8);
  for (int head = 0; head < p.num_kv_heads; ++head) {
    for (uint32_t i = 0; i < p.num_rows + device::kPrefillScalePad; ++i) {
      const size_t to = static_cast<size_t>(head * p.kv_head_stride + i);
      float scales[2] = {0, 0};
      if (i < p.num_rows) {
        const auto* const row = static_cast<const std::byte*>(p.rows) + (head * p.head_stride + i) * row_bytes;
        std::memcpy(scales, row + codes, sizeof scales);
        for (size_t d = 0; d < codes; ++d) {
          static_cast<uint16_t*>(p.kv)[to * codes + d] = F32ToBf16(static_cast<int8_t>(row[d]));
        }
      }
      p.key_scales[to] = scales[0];
      p.value_scales[to] = scales[1];
    }
  }
}

// As widen_rows was given them, over all kv heads.
std::vector<std::byte> NarrowRows(const device::PrefillAttentionParams& p) {
  const size_t codes = 2 * static_cast<size_t>(p.head_dim), row_bytes = RowLayout().bytes(p.head_dim, Dtype::kI8);
  std::vector<std::byte> rows(p.num_kv_heads * static_cast<size_t>(p.kv_head_stride) * row_bytes);
  for (int head = 0; head < p.num_kv_heads; ++head) {
    for (uint32_t i = 0; i < p.first_position + p.num_queries; ++i) {
      const size_t at = static_cast<size_t>(head * p.kv_head_stride + i);
      std::byte* const row = rows.data() + at * row_bytes;
      for (size_t d = 0; d < codes; ++d) {
        const float code = Bf16ToF32(static_cast<const uint16_t*>(p.kv)[at * codes + d]);
        row[d] = static_cast<std::byte>(static_cast<int8_t>(code));
      }
      const float scales[2] = {p.key_scales[at], p.value_scales[at]};
      std::memcpy(row + codes, scales, sizeof scales);
    }
  }
  return rows;
}

// Each query to rows of its own.
void AttendToSelected(const device::PrefillAttentionParams& p) {
  const size_t heads = static_cast<size_t>(p.num_queries) * p.num_query_heads;
  const std::vector<float> q = ArrayFromBf16(p.q, heads * p.head_dim);
  std::vector<float> out(q.size());
  std::vector<const uint32_t*> lists;
  for (int i = 0; i < p.num_queries; ++i) lists.push_back(p.selected + static_cast<size_t>(i) * p.selected_count);
  const std::vector<uint32_t> counts(lists.size(), p.selected_count);
  std::vector<std::byte> scratch(DecodeAttentionScratchBytes(heads * p.selected_count, heads, p.head_dim));
  Cpu().decode_attention(Team(), {.q = q.data(),
                                  .num_rows = p.num_queries,
                                  .num_query_heads = p.num_query_heads,
                                  .num_kv_heads = 1,
                                  .head_dim = p.head_dim,
                                  .scale = p.scale,
                                  .slot_pool = p.kv,
                                  .kv_dtype = Dtype::kBf16,
                                  .row = p.row,
                                  .slots = lists.data(),
                                  .slot_counts = counts.data(),
                                  .out = out.data(),
                                  .scratch = scratch.data()});
  Store(out, Dtype::kBf16, p.out);
}

void PrefillAttention(Stream, const device::PrefillAttentionParams& p) {
  WINNOW_CHECK(p.streaming_window == nullptr);
  if (p.selected != nullptr) return AttendToSelected(p);
  const size_t elements = static_cast<size_t>(p.num_queries) * p.num_query_heads * p.head_dim;
  const std::vector<float> q = ArrayFromBf16(p.q, elements);
  std::vector<float> out(elements);
  const bool is_int8 = p.key_scales != nullptr;
  const std::vector<std::byte> int8_rows = is_int8 ? NarrowRows(p) : std::vector<std::byte>();
  Cpu().prefill_attention(Team(), {.q = q.data(),
                                   .num_queries = p.num_queries,
                                   .first_position = p.first_position,
                                   .num_query_heads = p.num_query_heads,
                                   .num_kv_heads = p.num_kv_heads,
                                   .head_dim = p.head_dim,
                                   .scale = p.scale,
                                   .kv = is_int8 ? int8_rows.data() : p.kv,
                                   .kv_head_stride = p.kv_head_stride,
                                   .kv_dtype = is_int8 ? Dtype::kI8 : Dtype::kBf16,
                                   .row = p.row,
                                   .out = out.data(),
                                   .window = p.sliding_window,
                                   .sinks = p.sinks});
  Store(out, Dtype::kBf16, p.out);
}

}  // namespace

device::AttentionKernels HostAttentionKernels() {
  device::AttentionKernels kernels{};
  kernels.decode_attention_scratch_bytes = AttentionScratch;
  kernels.decode_attention = DecodeAttention;
  return kernels;
}

device::PrefillAttentionKernels HostPrefillKernels() {
  device::PrefillAttentionKernels kernels{};
  kernels.prefill_attention = PrefillAttention;
  kernels.widen_rows = WidenRows;
  return kernels;
}

}  // namespace winnow::test
