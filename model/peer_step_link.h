#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/base/kv_shard.h"
#include "common/base/status.h"
#include "common/selection/selection_spec.h"
#include "model/token_draw.h"

namespace winnow {

// What a batch and its peer links are made for: all of their sequences alike.
struct PeerStepShape {
  SelectionSpec spec;
  int max_rows = 0;  // of the batch
  int hidden_size = 0;
  uint32_t max_positions = 0;   // of a sequence
  uint32_t pages_per_list = 0;  // slot pages of a list, up to its pool's end
  std::string synthetic_model;  // whose random weights these are; empty: of a checkpoint
  KvShard shard;                // of the model, what the peer link carries: the kv heads of one GPU
};

class PeerStepBatch;

// The inference rank's end of decode steps that run between its GPU and a cache rank's
// (kernels/device/params/exchange.h): both are told of a step by their hosts, and raise and await flags in each other's
// memory. A sequence has a row of the GPU's batch, whose working set the cache rank's GPU writes to. Engine thread, but
// for Abort.
class PeerStepLink {
 public:
  virtual ~PeerStepLink() = default;
  virtual const PeerStepShape& shape() const = 0;
  // The batch that its sequences have rows of, for its life.
  virtual const std::shared_ptr<PeerStepBatch>& batch() const = 0;
  // Of the memory that it exposes, for the cache rank.
  virtual const std::string& address() const = 0;
  // Maps what the cache rank exposes. FAILED_PRECONDITION where the GPUs cannot reach each other.
  virtual absl::Status Connect(std::string_view peer_address) = 0;

  // Where push number 1, 2, ... of a prompt's rows goes in the cache rank's memory: [num_kv_heads][count][2 * head_dim]
  // of one layer, count <= staging_tokens(). After staging_places() pushes the places repeat. After Connect.
  virtual void* StagingPlace(uint64_t push) const = 0;
  virtual uint64_t staging_places() const = 0;
  virtual uint32_t staging_tokens() const = 0;

  // Ends a step's waits for this cache rank, now and later. Any thread.
  virtual void Abort(const absl::Status& why) = 0;
  // Not OK: the peer link is over, and what its rows got of the last step is worthless. DATA_LOSS where rows that a
  // step attended to are not what the cache rank has.
  virtual absl::Status status() const = 0;
};

// The rows that one GPU steps together, of sequences behind peer links to several cache ranks. Where several GPUs
// hold the model, each has batches of its own, of one peer link to the cache rank that holds its kv heads: a step runs
// on one batch of each GPU, which have joined. A step may be launched while the one before it runs: its state lies on
// the device, where a drawn token enters the next step. Engine thread, but for Launch and Complete.
class PeerStepBatch {
 public:
  struct Row {
    int batch_row = 0;
    // nullopt: the one that this row has drawn in the step launched before, which the host need not have seen.
    std::optional<uint32_t> token_id;
    uint32_t position = 0;
    std::optional<TokenDraw> draw;  // nullopt: the logits are wanted
    bool takes_mass = false;        // captured mass was measured at the position before
  };

  // Of one list of a row: how many rows it has selected, and how many of these came with the step.
  struct ListCounts {
    uint32_t selected = 0;
    uint32_t pushed = 0;
  };

  virtual ~PeerStepBatch() = default;
  virtual const PeerStepShape& shape() const = 0;
  // Once, before the first step: all batches that run steps together, this one included, one for each GPU in the GPUs'
  // order.
  virtual absl::Status Join(std::span<PeerStepBatch* const> batches) = 0;
  // Runs work(i) for batch i of those that have joined, at once, each on the thread that launches its GPU's work.
  virtual void RunTogether(const std::function<void(int)>& work) = 0;

  // A sequence of the peer link's cache rank takes the batch row, which is in no step under way: `pages`
  // [num_lists][pages_per_list] of its working set.
  virtual void AssignRow(int batch_row, PeerStepLink& peer_link, std::span<const uint32_t> pages) = 0;
  // Steps that may be between Launch and Complete.
  static constexpr int kMaxStepsUnderWay = 2;
  // The number of the next step to be launched, which the cache ranks with rows in it are told.
  virtual uint32_t next_step() const = 0;
  // Before Launch, on all batches before any of them launches.
  virtual absl::Status Prepare(std::span<const Row> rows) = 0;
  // This GPU's part of one step of these rows, once their cache ranks have been told of it. An error is the GPU's, and
  // ends the batch.
  virtual absl::Status Launch(std::span<const Row> rows) = 0;
  // Waits until the tokens of the oldest step under way are there, or will not come: every wait of a step is bounded.
  // Errors as those of Launch; a peer link's is its status, and concerns its rows alone.
  virtual absl::Status Complete() = 0;
  // Ends steps that are under way, which then fail, and all later ones. Any thread.
  virtual void Abort(const absl::Status& why) = 0;
  // Of the rows of the step completed last, the same on all GPUs: the token that was drawn, or the logits, overwritten
  // by the next Launch or pass.
  virtual uint32_t drawn_token(size_t row) const = 0;
  virtual std::span<float> logits(size_t row) = 0;
  // Of those that take it: captured mass of the position before, which the step before decoded, [num_lists]. NaN: the
  // list was not measured; empty: none was.
  virtual std::span<const float> captured_mass(size_t row) const = 0;
  virtual std::span<const ListCounts> counts(size_t row) const = 0;  // [num_lists]
};

}  // namespace winnow
