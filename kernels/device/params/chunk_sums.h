#pragma once
#include <cstdint>

#include "kernels/device/stream.h"

namespace winnow::device {

inline constexpr int kMaxTensorParallel = 4;
// Thread blocks that have flags of their own.
inline constexpr int kChunkSumBlocks = 256;

// Which rows of a chunk each GPU of a tensor-parallel group adds up and keeps: `group_rows` positions in turn, so that
// a position's owner does not depend on where chunks begin and end.
struct ChunkOwners {
  uint32_t first_position = 0;  // of row 0
  int num_rows = 0;
  uint32_t group_rows = 0;  // 0: every rank keeps all rows
};

// The rows of a chunk that one rank owns, in their order.
class OwnedRows {
 public:
  constexpr OwnedRows(const ChunkOwners& owners, int rank, int num_ranks)
      : group_(owners.group_rows),
        turn_(group_ * num_ranks),
        rank_first_(rank * group_),
        first_position_(owners.first_position),
        below_(group_ > 0 ? Below(first_position_) : 0),
        count_(group_ > 0 ? static_cast<int>(Below(first_position_ + owners.num_rows) - below_) : owners.num_rows) {}
  constexpr int count() const { return count_; }
  // Row of the chunk that is row i of these.
  constexpr int row(int i) const {
    if (group_ == 0) return i;
    const uint32_t owned = below_ + i;
    return static_cast<int>(owned / group_ * turn_ + rank_first_ + owned % group_ - first_position_);
  }

 private:
  // Owned positions before this one.
  constexpr uint32_t Below(uint32_t position) const {
    const uint32_t in_turn = position % turn_, in_group = in_turn < rank_first_ ? 0 : in_turn - rank_first_;
    return position / turn_ * group_ + (in_group < group_ ? in_group : group_);
  }

  uint32_t group_, turn_, rank_first_, first_position_, below_;
  int count_;
};

// What the GPUs of a tensor-parallel group have each computed of a chunk of a prompt, added up by the owner of each
// row: x += partial of rank 0 + of rank 1 + ..., in this order whoever owns it. Then, with a weight, out =
// bf16(rms_norm(x)), the bits of RmsNormParams, which the owner stores with all of them: the launch ends when all rows
// of out are there. So the residual is split and norms are shared out, and 4 + 2 bytes of each other element cross the
// link instead of 8.
//
// Every rank launches the same. A block stores its rows with their owners and raises a flag with each, then adds up its
// like of its own rows: blocks wait for their counterparts alone. A mailbox is used every other sum, so that nothing is
// overwritten before it has been read: a rank that has ended a launch knows that all ranks have ended the one before.
// Nor does a rank store a row of out before the flag says that what came before has ended there, too. Waits end as
// those of WaitParams do; after one that failed x and out are worthless.
struct ChunkSumParams {
  int rank = 0;
  int num_ranks = 0;
  ChunkOwners owners;
  int hidden_size = 0;                        // a multiple of 4, at most 8192
  const float* partial = nullptr;             // [num_rows, hidden_size] of this rank; null: nothing is added
  float* x = nullptr;                         // [num_rows, hidden_size], of which this rank's rows are used
  float* mailboxes[kMaxTensorParallel] = {};  // of each rank: [num_ranks][mailbox_stride], its rows without gaps
  int64_t mailbox_stride = 0;                 // floats
  const float* weight = nullptr;              // [hidden_size], written before the stream's work began; null: no norm
  float epsilon = 0;
  void* out[kMaxTensorParallel] = {};        // of each rank: [num_rows, hidden_size] bf16
  uint32_t* flags[kMaxTensorParallel] = {};  // of each rank: [2][num_ranks][kChunkSumBlocks]
  const uint32_t* value = nullptr;           // device word: what flags are raised to
  uint32_t value_plus = 0;                   // added to it: where mailboxes serve several sums of a pass
  const uint32_t* abort = nullptr;
  uint32_t* error = nullptr;
  uint32_t timeout_us = 1000000;
};

struct ChunkSumKernels {
  void (*add_chunk)(Stream, const ChunkSumParams&);
};
extern const ChunkSumKernels kChunkSumKernels;

}  // namespace winnow::device
