#include "tests/support/host_gpu/host_indexer.h"

#include <algorithm>
#include <vector>

#include "common/base/check.h"
#include "kernels/device/params/predict.h"
#include "kernels/indexer.h"
#include "tests/support/host_gpu/host_cpu.h"

namespace winnow::test {
namespace {

using device::Stream;

// The row that holds position `key` of those that query `row` sees.
const std::byte* RowAt(const device::IndexScoreParams& p, int row, uint32_t key) {
  size_t at = key;
  if (p.lists != nullptr) {
    const device::AttentionList& list = p.lists[row];
    const uint32_t local = list.ring_base + key;
    at = size_t{p.pages[list.first_page + local / kSlotPageTokens]} * kSlotPageTokens + local % kSlotPageTokens;
  }
  const RowLayout layout{.value_is_key = true, .index_dim = p.dim};
  return static_cast<const std::byte*>(p.rows) + at * layout.bytes(p.key_dim, Dtype::kBf16);
}

// As cache ranks and prompts on CPUs score.
void ScoreRow(const device::IndexScoreParams& p, int row, uint32_t num_keys) {
  const RowLayout layout{.value_is_key = true, .index_dim = p.dim};
  const size_t tile_words = IndexTileBytes(p.dim, Dtype::kBf16) / sizeof(uint64_t);
  const uint32_t num_tiles = (num_keys + kBlockTokens - 1) / kBlockTokens;
  std::vector<uint64_t> words(num_tiles * tile_words + 8);
  auto* const first =
      reinterpret_cast<uint64_t*>((reinterpret_cast<uintptr_t>(words.data()) + 63) / 64 * 64);  // of whole cache lines
  WINNOW_CHECK(IndexTileBytes(p.dim, Dtype::kBf16) % 64 == 0);
  std::vector<const void*> tiles;
  for (uint32_t tile = 0; tile < num_tiles; ++tile) {
    tiles.push_back(first + tile * tile_words);
    for (uint32_t key = tile * kBlockTokens; key < std::min<uint32_t>((tile + 1) * kBlockTokens, num_keys); ++key) {
      Cpu().index_keys({.rows = RowAt(p, row, key) + layout.index_offset(p.key_dim) * DtypeBytes(Dtype::kBf16),
                        .num_rows = 1,
                        .first_row = static_cast<int>(key % kBlockTokens),
                        .head_dim = p.dim,
                        .dtype = Dtype::kBf16,
                        .tile = const_cast<void*>(tiles.back())});
    }
  }
  std::vector<float> scratch(IndexerScratchFloats(p.num_heads));
  ScoreByIndexer(Cpu(), {.tiles = tiles.data(),
                         .num_keys = static_cast<int>(num_keys),
                         .head_dim = p.dim,
                         .dtype = Dtype::kBf16,
                         .queries = p.queries + static_cast<int64_t>(row) * p.num_heads * (p.dim + 1),
                         .num_heads = p.num_heads,
                         .scores = p.scores + row * p.stride,
                         .scratch = scratch.data()});
}

void IndexScores(Stream, const device::IndexScoreParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    const uint32_t position = p.positions == nullptr ? p.first_position + row : p.positions[row];
    const uint32_t num_keys = position == device::kNoPosition ? 0 : position + 1;
    const uint32_t budget = p.budgets == nullptr ? p.max_budget : p.budgets[row];
    const bool selects = budget > 0 && num_keys > budget;
    WINNOW_CHECK(num_keys <= p.max_keys && budget <= p.max_budget);
    p.selections[row] = {.first_block = 0,
                         .num_keys = num_keys,
                         .first = 0,
                         .last = selects ? num_keys : 0,
                         .budget = budget,
                         .query = 0};
    if (selects) ScoreRow(p, row, num_keys);
    if (p.lists == nullptr) continue;
    device::AttentionList& list = p.lists[row];
    list.selected_first = row * p.max_budget;
    list.selected_count = selects ? budget : 0;
    if (selects) list.recent_count = 0;
  }
}

}  // namespace

device::IndexerKernels HostIndexerKernels() {
  return {.scores = IndexScores};
}

}  // namespace winnow::test
