// Copies of rows that others want: where they lie one behind the other, and where they lie apart.
#include <algorithm>
#include <cstring>

#include "cache_rank/store/sequence_kv.h"
#include "kernels/parallel_for.h"

namespace winnow {
namespace {

constexpr uint32_t kManyCopiedRows = 2 * kBlockTokens;
// A part of rows that lie apart: each of them is a wait for memory, so that threads pay sooner than for neighbours.
constexpr size_t kScatteredRows = 32;

size_t PartsOf(const WantedRows& wanted) {
  return (wanted.positions.size() + kScatteredRows - 1) / kScatteredRows;
}

}  // namespace

void SequenceKv::CopyRows(int layer, int head, uint32_t first, uint32_t count, std::byte* out) const {
  Settle(layer, first + count);
  const BlockList& blocks = list(layer, head).rows;
  const size_t row_bytes = layout_.row_bytes();
  while (count > 0) {
    const uint32_t row = first % kBlockTokens;
    const uint32_t n = std::min<uint32_t>(count, kBlockTokens - row);
    const KvBlock& block = blocks[first / kBlockTokens];
    if (!block) {
      std::memset(out, 0, n * row_bytes);
    } else if (pool_->tiers() != nullptr) {
      loaded_rows_ += pool_->tiers()->CopyRun(block.number(), block.rows(), row, n, out);
    } else {
      std::memcpy(out, block.rows() + row * row_bytes, n * row_bytes);
    }
    if (block) CheckCopied(layer, head, block, first, n, out);
    out += n * row_bytes;
    first += n;
    count -= n;
  }
}

void SequenceKv::CopyLayerRows(int layer, uint32_t first, uint32_t count, std::byte* out, Executor* team) const {
  const size_t row_bytes = layout_.row_bytes();
  if (team == nullptr || pool_->tiers() != nullptr || count < kManyCopiedRows) {
    for (int head = 0; head < layout_.num_kv_heads; ++head) {
      CopyRows(layer, head, first, count, out + head * count * row_bytes);
    }
    return;
  }
  // Small parts, as threads come when they wake up.
  const uint32_t parts = (count + kManyCopiedRows - 1) / kManyCopiedRows;
  ParallelForOn(*kernels_, *team)(layout_.num_kv_heads * parts, [&](size_t index) {
    const size_t head = index / parts;
    const auto at = static_cast<uint32_t>(index % parts) * kManyCopiedRows;
    CopyRows(layer, static_cast<int>(head), first + at, std::min(kManyCopiedRows, count - at),
             out + (head * count + at) * row_bytes);
  });
}

void SequenceKv::GatherRows(std::span<const WantedRows> wanted, Executor* team) {
  size_t rows = 0, parts = 0;
  for (const WantedRows& of_list : wanted) {
    rows += of_list.positions.size();
    parts += PartsOf(of_list);
  }
  if (rows == 0) return;
  const SequenceKv& any = *wanted[0].kv;
  if (team == nullptr || any.pool_->tiers() != nullptr || rows < kManyCopiedRows) {
    for (const WantedRows& of_list : wanted) of_list.kv->Gather(of_list);
    return;
  }
  ParallelForOn(*any.kernels_, *team)(parts, [&](size_t part) {
    const WantedRows* of_list = wanted.data();
    for (; part >= PartsOf(*of_list); ++of_list) part -= PartsOf(*of_list);
    WantedRows some = *of_list;
    const size_t first = part * kScatteredRows;
    some.positions = some.positions.subspan(first, std::min(kScatteredRows, some.positions.size() - first));
    some.out += first * some.kv->layout_.row_bytes();
    some.kv->Gather(some);
  });
}

void SequenceKv::Gather(const WantedRows& wanted) const {
  const auto [kv, layer, head, positions, out] = wanted;
  if (positions.empty()) return;
  const BlockList& blocks = list(layer, head).rows;
  if (RowTiers* const tiers = pool_->tiers()) {
    Settle(layer, positions.back() + 1);
    loaded_rows_ += tiers->Gather(blocks, rows_[layer] / kBlockTokens, positions, out);
  } else {
    kernels_->gather_rows({.blocks = blocks.rows(),
                           .positions = positions.data(),
                           .num_rows = static_cast<uint32_t>(positions.size()),
                           .row_bytes = layout_.row_bytes(),
                           .out = out});
  }
  CheckGathered(layer, head, positions, out);
}

}  // namespace winnow
