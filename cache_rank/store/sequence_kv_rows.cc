// Copies of rows that others want: where they lie one behind the other, and where they lie apart.
#include <algorithm>
#include <cstring>

#include "cache_rank/store/sequence_kv.h"
#include "kernels/parallel_for.h"

namespace winnow {
namespace {

constexpr uint32_t kManyCopiedRows = 2 * kBlockTokens;

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

void SequenceKv::GatherRows(std::span<const WantedRows> wanted, Executor* team, OnGathered gathered) {
  size_t rows = 0, parts = 0;
  for (const WantedRows& of_list : wanted) {
    rows += of_list.positions.size();
    parts += of_list.parts();
  }
  if (rows == 0) return;
  const SequenceKv& any = *wanted[0].kv;
  if (team == nullptr || any.pool_->tiers() != nullptr || rows < kManyCopiedRows) {
    for (size_t list = 0; list < wanted.size(); ++list) {
      wanted[list].kv->Gather(wanted[list]);
      if (!wanted[list].positions.empty()) gathered(list, wanted[list].parts(), /*worker=*/0);
    }
    return;
  }
  struct Loop {
    std::span<const WantedRows> wanted;
    OnGathered gathered;
  } loop{wanted, gathered};
  any.kernels_->parallel_for(
      *team, static_cast<int>(parts),
      [](void* context, int index, int worker) {
        const Loop& of = *static_cast<const Loop*>(context);
        size_t list = 0, part = static_cast<size_t>(index);
        for (; part >= of.wanted[list].parts(); ++list) part -= of.wanted[list].parts();
        WantedRows some = of.wanted[list];
        const size_t first = part * WantedRows::kRowsOfPart;
        some.positions =
            some.positions.subspan(first, std::min(WantedRows::kRowsOfPart, some.positions.size() - first));
        some.out += first * some.kv->layout_.row_bytes();
        if (some.checksums != nullptr) some.checksums += part;
        some.kv->Gather(some);
        of.gathered(list, 1, worker);
      },
      &loop);
}

void SequenceKv::Gather(const WantedRows& wanted) const {
  const std::span<const uint32_t> positions = wanted.positions;
  if (positions.empty()) return;
  const BlockList& blocks = list(wanted.layer, wanted.head).rows;
  if (RowTiers* const tiers = pool_->tiers()) {
    Settle(wanted.layer, positions.back() + 1);
    loaded_rows_ += tiers->Gather(blocks, rows_[wanted.layer] / kBlockTokens, positions, wanted.out);
  } else {
    kernels_->gather_rows({.blocks = blocks.rows(),
                           .positions = positions.data(),
                           .num_rows = static_cast<uint32_t>(positions.size()),
                           .row_bytes = layout_.row_bytes(),
                           .out = wanted.out});
  }
  CheckGathered(wanted);
}

}  // namespace winnow
