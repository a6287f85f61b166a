#pragma once
#include <cstdint>

#include "cache_rank/store/cached_sequence.h"
#include "cache_rank/store/sequence_store.h"
#include "common/base/status.h"
#include "kernels/kernel_table.h"
#include "winnow/v1/replication.pb.h"

namespace winnow {

// What travels from a sequence to its replica. A sequence is a function of its rows, the newest queries and its
// specification: indexes, selections and images of pools are made anew from these. Verifications do not travel, so that
// a sequence whose budgets grow is decoded again from the end of its prompt on. Data-plane thread.

// What a replica of the sequence is to be opened with.
v1::ReplicaOpening OpeningOf(const CachedSequence& sequence);
absl::StatusOr<SequenceStore::OpenOptions> OptionsOf(uint64_t sequence_id, const v1::ReplicaOpening& opening);

// Positions [first, first + count), which are below the watermark.
v1::ReplicaRows RowsOf(const CachedSequence& sequence, uint32_t first, uint32_t count, Executor* team);
// Stores them in a replica, whose rows from there on they replace. FAILED_PRECONDITION when positions before them are
// missing; INVALID_ARGUMENT when they do not have the shape of the sequence.
absl::Status StoreRows(const v1::ReplicaRows& rows, CachedSequence& replica, Executor* team);

}  // namespace winnow
