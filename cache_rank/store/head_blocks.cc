#include "cache_rank/store/head_blocks.h"

namespace winnow {

void HeadBlocks::Reserve(const IndexLayout& index, uint32_t max_positions) {
  const size_t page_blocks = BlockList::BlocksFor(CompletePages(index, max_positions));
  rows.Reserve(BlockList::BlocksFor(max_positions));
  bounds.Reserve(page_blocks);
  if (index.cuboid) cuboids.Reserve(page_blocks);
}

void HeadBlocks::Adopt(const PrefixUnit& unit, size_t list) {
  rows.Push(unit.rows[list].Share());
  if (!unit.bounds.empty()) bounds.Push(unit.bounds[list].Share());
  if (!unit.cuboids.empty()) cuboids.Push(unit.cuboids[list].Share());
}

void HeadBlocks::ShareUnit(const IndexLayout& index, size_t block, PrefixUnit* unit) const {
  const auto full_page_blocks = [&](size_t blocks) {
    return CompletePages(index, static_cast<uint32_t>(blocks * kBlockTokens)) / kBlockTokens;
  };
  unit->rows.push_back(rows[block].Share());
  const uint32_t page_block = full_page_blocks(block);
  if (full_page_blocks(block + 1) == page_block) return;  // it completes no block of pages
  unit->bounds.push_back(bounds[page_block].Share());
  if (index.cuboid) unit->cuboids.push_back(cuboids[page_block].Share());
}

void HeadBlocks::CopyFrom(const HeadBlocks& source, const IndexLayout& index, uint32_t positions,
                          KvBlockReservation& reservation) {
  const uint32_t pages = CompletePages(index, positions);
  rows.CopyFrom(source.rows, positions, reservation);
  bounds.CopyFrom(source.bounds, pages, reservation);
  if (index.cuboid) cuboids.CopyFrom(source.cuboids, pages, reservation);
}

size_t HeadBlocks::index_bytes() const {
  size_t bytes = 0;
  for (const BlockList* blocks : {&rows, &bounds, &cuboids}) {
    for (size_t b = 0; b < blocks->size(); ++b) {
      if ((*blocks)[b]) bytes += (*blocks)[b].index_bytes();
    }
  }
  return bytes;
}

}  // namespace winnow
