#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/selection/selection_spec.h"
#include "model/token_draw.h"

namespace winnow {

// What one row of a step computes: one position of the sequence that holds the row.
struct StepRow {
  int row = 0;
  // The token that enters. nullopt: the one that this row has drawn in the step launched before, which the host need
  // not have seen.
  std::optional<uint32_t> token_id = std::nullopt;
  uint32_t position = 0;  // of that token
  // How the row's next token is drawn; nullopt: the host chooses it from the logits.
  std::optional<TokenDraw> draw = std::nullopt;
  bool wants_logits = false;  // although it is drawn
};

// A sequence that takes a row of the batch.
struct StepSequence {
  const SelectionSpec* spec = nullptr;
  std::span<const uint32_t> pages;         // of its lists, [num_lists][pages_per_list()]: row p lies at slot p
  std::span<const uint32_t> staging = {};  // slot pages for rows that were selected, [num_lists][any]; empty: none
  uint32_t position = 0;                   // rows below are in their slots
  uint32_t indexed_positions = 0;          // of these, rows whose keys are in the index of the slots: whole pages
  uint32_t max_positions = 0;
  uint32_t prompt_tokens = 0;
  // Where the predictor looks back: queries of the positions before, before RoPE, the newest of them last,
  // [num_layers][any][num_query_heads][head_dim].
  std::span<const float> past_queries = {};
};

// What the rows of a step attended to by selections, over all lists that select.
struct StepSelection {
  std::span<const float> captured_masses;  // of the lists that were measured; empty at most positions
  uint64_t selected_rows = 0;              // counted where masses were measured
  uint64_t fetched_rows = 0;               // of these, those that came over PCIe
};

// Decode steps of one inference rank whose KV lies where they run, by one way of moving bytes and signals ("carrier").
// A step is launched without waiting for the one before it: its state lies on the device, where a drawn token enters
// the next step. Engine thread.
//
// Per step: Plan on the host, Launch, which computes the logits, Draw, which may come later, and in the order of the
// launches Complete. At most kMaxStepsUnderWay steps may be between Launch and Complete, and only the last of them not
// be drawn yet. Rows that are moved between two launches are moved between the two steps, and slots of a sequence that
// has ended may be given to another one at once.
class StepClient {
 public:
  static constexpr int kMaxStepsUnderWay = 2;

  virtual ~StepClient() = default;

  // Sequences that a step can hold: rows 0 .. max_rows() - 1.
  virtual int max_rows() const = 0;
  virtual uint32_t vocab_size() const = 0;
  // Entries of a list's page table.
  virtual uint32_t pages_per_list() const = 0;

  // OK where sequences with this specification can take rows; otherwise what cannot be served. A constant of the
  // client. Any thread.
  virtual absl::Status Serves(const SelectionSpec& spec) const = 0;
  // Which index of the keys in their slots sequences of it have beside those, of what is served; 0: none. Slots that
  // several sequences have hold the index of one number at a time.
  virtual uint32_t IndexOf(const SelectionSpec& spec) const = 0;
  // A sequence takes the row, from the next step on. What it names is read before this returns. RESOURCE_EXHAUSTED, and
  // nothing changes, while rows of too many kinds of selection take part.
  virtual absl::Status SetRow(int row, const StepSequence& sequence) = 0;
  // Of the row's sequence, where its predictor looks back: queries of the positions before `end`, behind which at most
  // kMaxStepsUnderWay positions have been launched, as StepSequence has them. Empty otherwise, and where the device has
  // failed. Waits for the device.
  virtual std::vector<float> PastQueries(int row, uint32_t end) = 0;
  // The row is nobody's, once the steps under way have ended.
  virtual void ClearRow(int row) = 0;

  // Says what the next step computes. Rows that are not named sit it out.
  virtual void Plan(std::span<const StepRow> rows) = 0;
  // Launches the step that was planned, up to its logits. An error is the device's, for good.
  virtual absl::Status Launch() = 0;
  // Of the step launched last, until it is drawn: which tokens the row may draw, for the host to say: bit i % 64 of
  // word i / 64 is token i's. [(vocab_size + 63) / 64], undefined before.
  virtual std::span<uint64_t> token_mask(int row) = 0;
  // Has the step launched last draw its tokens, those rows from their masks, each of which has a token. Errors
  // likewise.
  virtual absl::Status Draw(std::span<const int> masked_rows) = 0;

  // Whether the oldest step that is under way has ended, once it is drawn: then Complete does not wait.
  virtual bool HasEnded() = 0;
  // Waits for the oldest step that is under way. What the calls below return is valid until the next Launch but one.
  virtual absl::Status Complete() = 0;
  // Of the step completed last. Of rows with a draw:
  virtual uint32_t drawn_token(int row) const = 0;
  // Of rows without one, and of those that want them: [vocab_size], the caller's to change.
  virtual std::span<float> logits(int row) const = 0;
  // The row's K and V: [num_layers][num_kv_heads] rows of the KV layout.
  virtual const std::byte* kv_rows(int row) const = 0;
  virtual StepSelection selection(int row) const = 0;
};

}  // namespace winnow
