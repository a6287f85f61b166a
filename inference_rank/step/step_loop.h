#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "inference_rank/metrics.h"
#include "inference_rank/sequence/sequence.h"
#include "inference_rank/step/step_client.h"
#include "inference_rank/step/step_rows_sender.h"
#include "inference_rank/step/steps_under_way.h"

namespace winnow {

// Runs the decode steps of sequences whose KV lies where they are computed (SlotOrder::kByPosition), ahead of what the
// host knows (StepsUnderWay). A sequence holds a row of the batch from its first such step until it leaves.
//
// What a row may draw can depend on the token before (a grammar, words that are not to be said). The step that draws is
// then launched up to its logits, and what the rows may draw is worked out while they are computed.
//
// The rows of a step go to the cache ranks once the host has them, one step late, so that there every sequence stands
// as it would after a step by frames: what needs it (another rank that attaches, a fork, a sequence that resumes) finds
// it there. Engine thread.
class StepLoop {
 public:
  struct Callbacks {
    // How the token that follows `position` is drawn; nullopt: the host chooses it from the logits.
    std::function<std::optional<TokenDraw>(const Sequence& sequence, uint32_t position)> draw_for;
    // Whether only some tokens may follow `position`. The tokens before need not be known yet.
    std::function<bool(const Sequence& sequence, uint32_t position)> is_restricted;
    // Which ones, as StepClient::token_mask() has them; what is known of the sequence ends at `position`. An error,
    // such as that there are none, is the sequence's.
    std::function<absl::Status(Sequence& sequence, uint32_t position, uint32_t vocab_size, std::span<uint64_t> mask)>
        fill_mask;
    // The newest position's token has come: as drawn, or to be chosen from the logits, which rows that want them get
    // with their draw.
    std::function<void(Sequence& sequence, std::optional<uint32_t> drawn, std::span<float> logits)> take_token;
  };

  StepLoop(StepClient& client, StepRowsSender sender, const KvLayout& layout, Callbacks callbacks,
           InferenceRankMetrics& metrics);

  // Whether the sequence's steps run here: it has a row, or there is one for it, which it takes. Without one, what is
  // dense goes by frames, and what selects in place waits.
  enum class Admission : uint8_t { kHasRow, kWaits, kByFrames };
  Admission Admit(Sequence& sequence);
  // Before the sequence leaves its row: what it looks back on goes on with it.
  void KeepPast(Sequence& sequence);
  // The sequence takes part no more; what is under way of it is dropped. Before its working set is given back.
  void Leave(Sequence& sequence);

  // Launches the next step of those of `rows`, which are admitted, that need not wait for a token of the host's, and
  // takes the results of the step before it, if there is one. Where nothing was launched it takes those of the step
  // under way. False when there was nothing to do.
  bool Turn(std::span<Sequence* const> rows);
  // The same without waiting for the device, beside something else that goes on: takes the results that have come, and
  // keeps as many steps under way as may be.
  void Poll(std::span<Sequence* const> rows);
  // Takes the results of all that is under way.
  void Drain();

  bool idle() const { return steps_.empty(); }
  int num_sequences() const { return num_sequences_; }

 private:
  // What the sequence's next step computes; nullopt while it cannot be said.
  std::optional<StepRow> NextRow(const Sequence& sequence) const;
  void Launch(std::span<Sequence* const> rows);
  // Has the step launched last draw its tokens.
  void Draw();
  // The step launched last may draw: the tokens before are known.
  bool CanDraw() const { return awaits_draw_ && steps_.size() == 1; }
  void Complete();
  void TakeRow(const StepsUnderWay::Row& of);
  void CountSelection(Sequence& sequence, const StepsUnderWay::Row& of);

  StepClient& client_;
  StepRowsSender sender_;
  const KvLayout layout_;
  const Callbacks callbacks_;
  InferenceRankMetrics& metrics_;

  std::vector<Sequence*> holders_;  // [max_rows]
  int num_sequences_ = 0;
  StepsUnderWay steps_;
  bool awaits_draw_ = false;  // of the newest of them
  std::vector<int> masked_rows_;
  uint64_t num_steps_ = 0;
  // Of the step at hand:
  std::vector<StepRow> planned_;
  std::vector<StepRowsSender::Row> sent_;
};

}  // namespace winnow
