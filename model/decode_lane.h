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

// What a lane is made for: all of its sequences alike.
struct DecodeLaneShape {
  SelectionSpec spec;
  int max_rows = 0;  // seats
  int hidden_size = 0;
  uint32_t max_positions = 0;   // of a sequence
  uint32_t pages_per_list = 0;  // slot pages of a list, up to its pool's end
  std::string synthetic_model;  // whose random weights these are; empty: of a checkpoint
  KvShard shard;                // of the model, what the lane carries: the kv heads of one GPU
};

class LaneGroup;

// The inference rank's end of decode steps that run between its GPU and a cache rank's (kernels/cuda/step/exchange.h):
// both are told of a step by their hosts, and meet at flags in each other's memory. A sequence has a seat of the GPU's
// group of lanes, whose working set the cache rank's GPU writes to. Engine thread, but for Abort.
class DecodeLane {
 public:
  virtual ~DecodeLane() = default;
  virtual const DecodeLaneShape& shape() const = 0;
  // The lanes that it shares seats and steps with, for its life.
  virtual const std::shared_ptr<LaneGroup>& group() const = 0;
  // Of the memory that it exposes, for the cache rank.
  virtual const std::string& address() const = 0;
  // Maps what the cache rank exposes. FAILED_PRECONDITION where the GPUs cannot reach each other.
  virtual absl::Status Connect(std::string_view peer_address) = 0;

  // Where push number 1, 2, ... of a prompt's rows goes in the cache rank's memory: [num_kv_heads][count][2 * head_dim]
  // of one layer, count <= landing_tokens(). After landing_places() pushes the places repeat. After Connect.
  virtual void* Landing(uint64_t push) const = 0;
  virtual uint64_t landing_places() const = 0;
  virtual uint32_t landing_tokens() const = 0;

  // Ends a step's waits for this cache rank, now and later. Any thread.
  virtual void Abort(const absl::Status& why) = 0;
  // Not OK: the lane is over, and what its rows got of the last step is worthless. DATA_LOSS where rows that a step
  // attended to are not what the cache rank has.
  virtual absl::Status status() const = 0;
};

// The lanes of one GPU, to several cache ranks, whose sequences are stepped together, and their seats. Where several
// GPUs hold the model, each has groups of its own, of one lane to the cache rank that holds its kv heads: a step runs
// on one group of each GPU, which have joined. Engine thread, but for Decode.
class LaneGroup {
 public:
  struct Row {
    int seat = 0;
    uint32_t token_id = 0;
    uint32_t position = 0;
    std::optional<TokenDraw> draw;  // nullopt: the logits are wanted
    bool takes_mass = false;        // captured mass was measured at the position before
  };

  // Of one list of a row: how many rows it has selected, and how many of these came with the step.
  struct ListCounts {
    uint32_t selected = 0;
    uint32_t pushed = 0;
  };

  virtual ~LaneGroup() = default;
  virtual const DecodeLaneShape& shape() const = 0;
  // Once, before the first step: all groups that run steps together, this one included, one for each GPU in the GPUs'
  // order.
  virtual absl::Status Join(std::span<LaneGroup* const> groups) = 0;
  // Runs work(i) for group i of those that have joined, at once, each on the thread that launches its GPU's work.
  virtual void RunTogether(const std::function<void(int)>& work) = 0;

  // A sequence of the lane's cache rank takes the seat: `pages` [num_lists][pages_per_list] of its working set.
  virtual void Seat(int seat, DecodeLane& lane, std::span<const uint32_t> pages) = 0;
  // The number of the next step, which the cache ranks with rows in it are told.
  virtual uint32_t next_step() const = 0;
  // Before Decode, on all groups before any of them decodes.
  virtual absl::Status Prepare(std::span<const Row> rows) = 0;
  // This GPU's part of one step of these rows, begun once their cache ranks have been told of it. Returns when the
  // tokens are there, or will not come: every wait is bounded. An error is the GPU's, and ends the group; a lane's is
  // its status, and concerns its rows alone.
  virtual absl::Status Decode(std::span<const Row> rows) = 0;
  // Ends a step that is under way, which then fails, and all later ones. Any thread.
  virtual void Abort(const absl::Status& why) = 0;
  // Of the rows of the last step, the same on all GPUs: the token that was drawn, or the logits, overwritten by the
  // next pass.
  virtual uint32_t drawn_token(size_t row) const = 0;
  virtual std::span<float> logits(size_t row) = 0;
  // Of those that take it: captured mass of the position before, which the step before decoded, [num_lists]. NaN: the
  // list was not measured; empty: none was.
  virtual std::span<const float> captured_mass(size_t row) const = 0;
  virtual std::span<const ListCounts> counts(size_t row) const = 0;  // [num_lists]
};

}  // namespace winnow
