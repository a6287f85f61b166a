#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "inference_rank/sequence/sequence.h"
#include "inference_rank/step/step_client.h"

namespace winnow {

// Decode steps that have been launched and whose results the host has not taken, oldest first: what of which sequence
// each of them computes. A step may be launched before the tokens of the one before it have come. Where an answer ends
// with such a token, the step launched meanwhile has computed one row too many, which is dropped.
//
// Sequence::next_position counts what has come to the host, Sequence::steps_under_way what is here. Engine thread.
class StepsUnderWay {
 public:
  struct Row {
    Sequence* sequence = nullptr;  // null: it has left
    int row = 0;                   // of the batch
    uint32_t position = 0;
    bool is_drawn = false;  // on the device
    bool is_restricted = false;
    bool has_logits = false;
    // Its results count: it is still wanted.
    bool is_wanted() const { return sequence != nullptr && !sequence->cancelled && sequence->failure.ok(); }
  };
  struct Step {
    uint64_t number = 0;
    std::vector<Row> rows;
  };

  // What the sequence's next step computes, but for its row and its draw; nullopt while that cannot be said, or nothing
  // may follow what is under way.
  std::optional<StepRow> NextOf(const Sequence& sequence) const;
  // A step has been launched behind the others.
  void Add(Step step);
  // The oldest, which has ended.
  Step TakeOldest();
  // The sequence takes part no more: nothing of it that is under way counts.
  void Forget(Sequence& sequence);

  bool empty() const { return steps_.empty(); }
  size_t size() const { return steps_.size(); }
  const Step& newest() const { return steps_.back(); }
  // The host draws no token of the newest step itself, so that a step behind it can go on with all of its rows.
  bool draws_all_tokens() const;

 private:
  std::deque<Step> steps_;
};

}  // namespace winnow
