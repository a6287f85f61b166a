#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "cache_rank/select/host/served_shape.h"
#include "cache_rank/store/cached_sequence.h"
#include "common/base/kv_shard.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// What an inference rank's GPU offers when a link is made.
struct PeerOffer {
  std::string address;  // of a device::PeerLink that exposes its slots, its inbox and the flags of this cache rank
  SelectionSpec spec;   // of all sequences of the peer link, as it is for the whole model
  int max_rows = 0;     // of the batch
  int hidden_size = 0;
  uint32_t max_positions = 0;   // of a sequence
  std::string synthetic_model;  // whose random weights it has; empty: those that the fingerprint names
  KvShard shard;                // of the sequences, what the peer link carries; without layers: everything
};

// Decode steps of one link that run between two GPUs (kernels/device/params/exchange.h): rows and queries are stored
// into this rank's memory, selections and their rows into the other's, and neither host looks at them. A sequence takes
// a batch row until another sequence gets it; plans say which batch rows decode. Its rows in host memory stay the
// truth: those of a plan come back after it, so that whatever ends the peer link, the sequence goes on by frames.
// Data-plane thread.
class DevicePeerLink {
 public:
  struct Row {
    uint64_t sequence_id = 0;
    uint32_t attach_epoch = 0;
    uint32_t position = 0;
    int batch_row = 0;
    uint64_t plan = 0;  // of its frame
  };
  // Rows that a row's lists have selected, unless they attend to everything, and how many of these they lacked; rows
  // that were sent, to all lists.
  struct RowCounts {
    uint64_t lookups = 0;
    uint64_t misses = 0;
    uint64_t sent = 0;
  };
  // K and V of a row's position: [num_layers][num_kv_heads][2 * head_dim], and its captured masses [num_lists], NaN
  // where a list was not measured; empty where none was. They are exact: every key was scored.
  using TakeRow =
      std::function<void(const Row& row, const std::byte* kv, std::span<const float> masses, const RowCounts& counts)>;

  // Plans that may be under way at once. A peer announces a step when that before the last has given it all of its
  // rows, whose end may be unseen here.
  static constexpr uint32_t kMostPlans = 3;

  virtual ~DevicePeerLink() = default;  // aborts what is under way and waits for its end
  virtual const std::string& address() const = 0;
  // The part of sequences that it serves: those of which this cache rank has just that.
  virtual const KvShard& shard() const = 0;
  virtual int num_batch_rows() const = 0;

  // Gives a sequence the batch row, in place of the one that it had, once DevicePeerLinks::Advance has nothing left to
  // do, whose watermark is decoded next and whose pools are empty: `pages` [num_lists][pages_per_list] are its slot
  // pages there. An error refuses the batch row and changes nothing else.
  virtual absl::Status AssignRow(int batch_row, const CachedSequence& sequence, std::span<const uint32_t> pages) = 0;
  // True when the sequence has this batch row in this attachment and decodes `position` next.
  virtual bool HasRow(const Row& row) const = 0;
  // Takes the batch row of a sequence away, if it has one, from the next plan on.
  virtual void ReleaseRow(uint64_t sequence_id) = 0;
  // Enqueues the plan of that step, behind those before, for sequences that have batch rows, each in its own.
  // INVALID_ARGUMENT while kMostPlans wait for TakeRows and for a step behind the last: no correct peer asks for
  // either.
  virtual absl::Status Launch(uint32_t step, std::span<const Row> rows) = 0;
  // Hands over the rows of plans that have ended well, oldest first. `wait`: until all have ended, which is bounded.
  virtual void TakeRows(bool wait, const TakeRow& take) = 0;
  virtual bool has_plans() const = 0;  // that TakeRows has not seen
  // Rows [first, first + count) of one layer of a prompt, that the peer says lie in the place of this push: begins to
  // bring them to host memory and, where they continue it, to the sequence's copy. `sequence` null: nobody wants
  // them. INVALID_ARGUMENT for what no peer may send.
  virtual absl::Status Stage(uint64_t push, const CachedSequence* sequence, int layer, uint32_t first,
                             uint32_t count) = 0;
  // The rows of the oldest push that was staged and not popped, in host memory: [num_kv_heads][count][2 *
  // head_dim]. Null while they are not there, unless it is to `wait`.
  virtual absl::StatusOr<const std::byte*> OldestStaged(bool wait) = 0;
  virtual void PopStaged() = 0;
  // Ends what is under way early.
  virtual void Abort(const absl::Status& why) = 0;
  // Not OK once a wait has run out, or the peer has ended: the link is over.
  virtual absl::Status status() const = 0;
};

// The peer links of a cache rank, and what their GPU holds: copies of the sequences that may take a batch row.
class DevicePeerLinks {
 public:
  virtual ~DevicePeerLinks() = default;
  // FAILED_PRECONDITION says why there can be none: then the link goes by frames.
  virtual absl::StatusOr<std::unique_ptr<DevicePeerLink>> Open(const PeerOffer& offer, const ServedShape& shape) = 0;

  // Threads that may copy rows; at any time before Open.
  virtual void UseExecutor(Executor* executor) = 0;
  // Memory for copied rows, and what sequences have taken of it, by where it lies: in the GPU's, or in the host's
  // DRAM, from where pushes fetch them over PCIe. Nothing before the first peer link.
  struct CopyBytes {
    uint64_t device = 0, device_used = 0, host = 0, host_used = 0;
  };
  virtual CopyBytes copy_bytes() const = 0;

  // Rows that were just appended, [num_kv_heads][count][2 * head_dim].
  virtual void OnRows(const CachedSequence& sequence, int layer, uint32_t first, uint32_t count,
                      const std::byte* rows) = 0;
  // Copies a part of the rows that were missed, for one turn of the loop. True when nothing is left to do.
  virtual bool Advance(const CachedSequence& sequence) = 0;
  // The sequence's rows at and above are gone.
  virtual void Truncate(uint64_t sequence_id, uint32_t position) = 0;
  // The sequence of this id has nothing in common with a later one.
  virtual void Forget(uint64_t sequence_id) = 0;
  // Forgets the sequences that do not stay.
  virtual void Retain(const std::function<bool(uint64_t sequence_id)>& stays) = 0;
};

}  // namespace winnow
