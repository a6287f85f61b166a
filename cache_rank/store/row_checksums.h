#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "transport/wire/crc32c_shift.h"

namespace winnow {

// The CRC-32C of each stored row, by block and place in the block, made of the bytes that arrived and kept apart from
// the rows, so that whoever reads a row can tell whether it is still what was written. Copies of a block share its
// checksums: a row that came right once is checked wherever it lies.
//
// The memory is 4 bytes a row, in an anonymous mapping that is taken as blocks are first used. Different blocks may be
// used by different threads at the same time.
class RowChecksums {
 public:
  // RESOURCE_EXHAUSTED when the address space does not hold those of `blocks`.
  static absl::StatusOr<std::unique_ptr<RowChecksums>> Create(size_t blocks, size_t row_bytes);
  ~RowChecksums();
  RowChecksums(const RowChecksums&) = delete;
  RowChecksums& operator=(const RowChecksums&) = delete;

  // The block holds no rows, until Set.
  void Clear(uint32_t block) { num_rows_[block] = 0; }
  // `count` rows from `first` on, of which no later ones are there any more.
  void Set(uint32_t block, uint32_t first, uint32_t count, const std::byte* rows);
  void Copy(uint32_t from, uint32_t to);

  // Rows that were written to the block; 0 for blocks that hold no rows.
  uint32_t num_rows(uint32_t block) const { return num_rows_[block]; }
  uint32_t of(uint32_t block, uint32_t row) const { return of_block(block)[row]; }
  // The first of `count` rows from `first` on, to be found at `rows`, that is not what was written; first + count: all
  // of them are.
  uint32_t FindDamaged(uint32_t block, uint32_t first, uint32_t count, const std::byte* rows) const;
  bool Matches(uint32_t block, uint32_t row, const std::byte* bytes) const {
    return FindDamaged(block, row, 1, bytes) == row + 1;
  }
  size_t row_bytes() const { return row_bytes_; }
  // The checksum of something and so many rows behind it, from theirs.
  uint32_t Join(uint32_t before, uint32_t of_rows, size_t num_rows = 1) const {
    for (; num_rows >= kBlockTokens; num_rows -= kBlockTokens) before = shift_by_block_(before);
    for (; num_rows > 0; --num_rows) before = shift_by_row_(before);
    return before ^ of_rows;
  }

 private:
  RowChecksums(uint32_t* checksums, size_t blocks, size_t row_bytes);
  uint32_t* of_block(uint32_t block) const { return checksums_ + size_t{block} * kBlockTokens; }

  uint32_t* const checksums_;  // [blocks][kBlockTokens]
  const size_t blocks_;
  const size_t row_bytes_;
  const Crc32cShift shift_by_row_, shift_by_block_;
  const std::unique_ptr<uint8_t[]> num_rows_;  // [blocks]
};

}  // namespace winnow
