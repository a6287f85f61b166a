#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/parallel_for.h"

namespace winnow {

// Equal pieces of whole rows, so many bytes apart on each side.
struct RowPieces {
  void* to = nullptr;
  size_t to_stride = 0;
  const void* from = nullptr;
  size_t from_stride = 0;
  size_t piece_bytes = 0;
  size_t num_pieces = 0;
};

// Bytes of one place that are copied to another.
struct BlockCopy {
  void* to = nullptr;
  const void* from = nullptr;
};

// Rows that a thread copies at a time, of many that several threads copy.
inline constexpr size_t kCopiedTogether = 32;

// Moves KV rows, of a size fixed beforehand, to slots and other places in a device's memory. Moves take effect in the
// order of the calls, before any work that is enqueued on the device after they have been flushed (by whoever enqueues
// it). Engine thread.
class RowMover {
 public:
  virtual ~RowMover() = default;
  // To a slot. `host_row` may be reused at once.
  virtual void Write(void* to, const void* host_row) = 0;
  // The same for rows that lie one behind the other, copied by `threads`, which may be empty. Slots are numbered from
  // `first_slot` on. With a `keep` the device may fetch the rows from where they lie instead: it holds them until they
  // have been fetched and ReleaseRead or another of these is called. It need not wait for a flush.
  virtual void WriteRows(std::span<const uint32_t> slots, uint32_t first_slot, const void* host_rows,
                         const ParallelFor& threads, const std::shared_ptr<const void>& keep) = 0;
  virtual void Copy(void* to, const void* device_row) = 0;
  // Blocks of `block_bytes`, whole rows, of slots to memory that is no slot, or the other way.
  virtual void CopyBeside(std::span<const BlockCopy> blocks, size_t block_bytes) = 0;
  // Rows of host memory to memory that is no slot, fetched from where they lie. `keep` holds them until they have been
  // and ReleaseRead or another of these is called; it may wait for earlier ones.
  virtual void WriteBeside(const RowPieces& pieces, std::shared_ptr<const void> keep) = 0;
  // Lets go of what has been fetched, without waiting. True when nothing else is held.
  virtual bool ReleaseRead() = 0;
  // The same of everything, once it has been.
  virtual void ReleaseAll() = 0;
};

}  // namespace winnow
