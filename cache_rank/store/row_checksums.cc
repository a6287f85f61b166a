#include "cache_rank/store/row_checksums.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "transport/wire/crc32c_rows.h"

namespace winnow {

absl::StatusOr<std::unique_ptr<RowChecksums>> RowChecksums::Create(size_t blocks, size_t row_bytes) {
  const size_t bytes = blocks * kBlockTokens * sizeof(uint32_t);
  // NORESERVE: pages are taken as blocks are first used.
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", bytes, " bytes for checksums: ", std::strerror(errno)));
  }
  // A hint: those of selected rows lie apart, and each would miss the TLB.
  (void)madvise(memory, bytes, MADV_HUGEPAGE);
  return std::unique_ptr<RowChecksums>(new RowChecksums(static_cast<uint32_t*>(memory), blocks, row_bytes));
}

RowChecksums::RowChecksums(uint32_t* checksums, size_t blocks, size_t row_bytes)
    : checksums_(checksums),
      blocks_(blocks),
      row_bytes_(row_bytes),
      shift_by_row_(row_bytes),
      shift_by_block_(row_bytes * kBlockTokens),
      num_rows_(new uint8_t[blocks]()) {}

RowChecksums::~RowChecksums() {
  munmap(checksums_, blocks_ * kBlockTokens * sizeof(uint32_t));
}

void RowChecksums::Set(uint32_t block, uint32_t first, uint32_t count, const std::byte* rows) {
  Crc32cOfRows(rows, row_bytes_, {of_block(block) + first, count});
  num_rows_[block] = static_cast<uint8_t>(first + count);
}

void RowChecksums::Copy(uint32_t from, uint32_t to) {
  std::memcpy(of_block(to), of_block(from), kBlockTokens * sizeof(uint32_t));
  num_rows_[to] = num_rows_[from];
}

uint32_t RowChecksums::FindDamaged(uint32_t block, uint32_t first, uint32_t count, const std::byte* rows) const {
  std::array<uint32_t, kBlockTokens> now;
  Crc32cOfRows(rows, row_bytes_, std::span(now).first(count));
  const uint32_t* const written = of_block(block) + first;
  return first + static_cast<uint32_t>(std::mismatch(written, written + count, now.begin()).first - written);
}

}  // namespace winnow
