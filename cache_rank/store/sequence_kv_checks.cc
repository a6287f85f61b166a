// How a sequence finds rows that are not what was written, and index that is not what its rows give.
#include <algorithm>
#include <array>
#include <cstring>

#include "cache_rank/store/sequence_kv.h"
#include "transport/wire/crc32c_rows.h"

namespace winnow {

void SequenceKv::NoteDamage(const DamagedRow& row) const {
  damage_->Write(row);
  pool_->CountDamage();
}

bool SequenceKv::ReadAgain(const KvBlock& block, uint32_t row, std::byte* out) const {
  if (pool_->tiers() == nullptr || !pool_->tiers()->GiveUpCopy(block.number())) return false;
  std::memcpy(out, block.rows() + row * layout_.row_bytes(), layout_.row_bytes());
  return pool_->checksums().Matches(block.number(), row, out);
}

void SequenceKv::CheckCopied(int layer, int head, const KvBlock& block, uint32_t position, uint32_t count,
                             std::byte* out) const {
  const size_t row_bytes = layout_.row_bytes();
  const uint32_t first = position % kBlockTokens, end = first + count;
  for (uint32_t row = first; row < end; ++row) {
    row = pool_->checksums().FindDamaged(block.number(), row, end - row, out + (row - first) * row_bytes);
    if (row < end && !ReadAgain(block, row, out + (row - first) * row_bytes)) {
      NoteDamage({layer, head, position - first + row});
    }
  }
}

void SequenceKv::CheckGathered(const WantedRows& wanted) const {
  constexpr size_t kPart = WantedRows::kRowsOfPart;
  const BlockList& blocks = list(wanted.layer, wanted.head).rows;
  const RowChecksums& checksums = pool_->checksums();
  const size_t row_bytes = layout_.row_bytes();
  std::span<const uint32_t> positions = wanted.positions;
  std::byte* out = wanted.out;
  uint32_t* of_part = wanted.checksums;
  std::array<uint32_t, kPart> written, now;
  for (; !positions.empty(); positions = positions.subspan(std::min(kPart, positions.size()))) {
    const size_t count = std::min(kPart, positions.size());
    for (size_t i = 0; i < count; ++i) {
      written[i] = checksums.of(blocks[positions[i] / kBlockTokens].number(), positions[i] % kBlockTokens);
    }
    Crc32cOfRows(out, row_bytes, std::span(now).first(count));
    for (size_t i = 0; i < count; ++i) {
      const uint32_t position = positions[i];
      if (written[i] != now[i] &&
          !ReadAgain(blocks[position / kBlockTokens], position % kBlockTokens, out + i * row_bytes)) {
        NoteDamage({wanted.layer, wanted.head, position});
      }
    }
    out += count * row_bytes;
    if (of_part == nullptr) continue;
    // Of a damaged row's bytes it is wrong: nothing that was read of the sequence leaves.
    uint32_t joined = written[0];
    for (size_t i = 1; i < count; ++i) joined = checksums.Join(joined, written[i]);
    *of_part++ = joined;
  }
}

uint32_t SequenceKv::JoinChecksums(uint32_t before, const WantedRows& rows) {
  size_t left = rows.positions.size();
  for (size_t part = 0; part < rows.parts(); ++part) {
    const size_t count = std::min(WantedRows::kRowsOfPart, left);
    before = rows.kv->pool_->checksums().Join(before, rows.checksums[part], count);
    left -= count;
  }
  return before;
}

bool SequenceKv::CheckRows(int layer, int head, uint32_t first, uint32_t end) const {
  const BlockList& blocks = list(layer, head).rows;
  for (uint32_t position = first; position < end;) {
    const uint32_t row = position % kBlockTokens;
    const uint32_t n = std::min<uint32_t>(end - position, kBlockTokens - row);
    const KvBlock& block = blocks[position / kBlockTokens];
    const uint32_t damaged =
        block ? pool_->checksums().FindDamaged(block.number(), row, n, block.rows() + row * layout_.row_bytes())
              : row + n;
    if (damaged < row + n) {
      NoteDamage({layer, head, position - row + damaged});
      return false;
    }
    position += n;
  }
  return true;
}

bool SequenceKv::CheckRows(int layer, int head, std::span<const uint32_t> positions) const {
  const BlockList& blocks = list(layer, head).rows;
  for (const uint32_t position : positions) {
    const KvBlock& block = blocks[position / kBlockTokens];
    const uint32_t row = position % kBlockTokens;
    if (pool_->checksums().Matches(block.number(), row, block.rows() + row * layout_.row_bytes())) continue;
    NoteDamage({layer, head, position});
    return false;
  }
  return true;
}

std::optional<DamagedRow> SequenceKv::FindBlock(uint32_t block_number) const {
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    for (int head = 0; head < layout_.num_kv_heads; ++head) {
      const BlockList& blocks = list(layer, head).rows;
      for (size_t b = 0; b < blocks.size(); ++b) {
        if (blocks[b] && blocks[b].number() == block_number) {
          return DamagedRow{layer, head, static_cast<uint32_t>(b * kBlockTokens)};
        }
      }
    }
  }
  return std::nullopt;
}

size_t SequenceKv::index_blocks(size_t list) const {
  const HeadBlocks& blocks = lists_[list];
  return blocks.rows.size() + blocks.bounds.size() + blocks.cuboids.size();
}

std::optional<uint32_t> SequenceKv::row_block_number(size_t list, size_t b) const {
  const BlockList& rows = lists_[list].rows;
  if (b >= rows.size() || !rows[b]) return std::nullopt;
  return rows[b].number();
}

SequenceKv::IndexCheck SequenceKv::MendIndex(size_t list, size_t b, std::vector<std::byte>& scratch) {
  const HeadBlocks& blocks = lists_[list];
  if (b < blocks.rows.size()) return MendTile(list, b, scratch);
  b -= blocks.rows.size();
  if (b < blocks.bounds.size()) return MendPages(list, b, /*cuboids=*/false, scratch);
  return MendPages(list, b - blocks.bounds.size(), /*cuboids=*/true, scratch);
}

// Index is made into a copy of what is there, so that what lies beside it, as of rows that were cut off, is the same.
SequenceKv::IndexCheck SequenceKv::MendTile(size_t list, size_t b, std::vector<std::byte>& scratch) {
  const KvBlock& block = lists_[list].rows[b];
  if (!block || !HasTile(block)) return {};
  const uint32_t rows = rows_[list / layout_.num_kv_heads];
  const auto first = static_cast<uint32_t>(b * kBlockTokens);
  const size_t bytes = block.tile_bytes();
  scratch.assign(block.tile(), block.tile() + bytes);
  if (rows > first) {
    IndexRows(block.rows(), std::min<uint32_t>(rows - first, kBlockTokens), 0, scratch.data());
  }
  const bool differs = std::memcmp(scratch.data(), block.tile(), bytes) != 0;
  if (differs) std::memcpy(block.tile(), scratch.data(), bytes);
  return {layout_.block_bytes() + bytes, differs};
}

SequenceKv::IndexCheck SequenceKv::MendPages(size_t list, size_t b, bool cuboids, std::vector<std::byte>& scratch) {
  const HeadBlocks& head = lists_[list];
  const KvBlock& block = (cuboids ? head.cuboids : head.bounds)[b];
  const size_t bytes = block.page_bytes();
  scratch.assign(block.rows(), block.rows() + bytes);
  const auto first = static_cast<uint32_t>(b * kBlockTokens);
  const uint32_t pages = CompletePages(index_layout_, rows_[list / layout_.num_kv_heads]);
  for (uint32_t page = first; page < std::min<uint32_t>(pages, first + kBlockTokens); ++page) {
    IndexPageInto(head, page, cuboids ? nullptr : scratch.data(), cuboids ? scratch.data() : nullptr);
  }
  const bool differs = std::memcmp(scratch.data(), block.rows(), bytes) != 0;
  if (differs) std::memcpy(block.rows(), scratch.data(), bytes);
  return {bytes, differs};
}

}  // namespace winnow
