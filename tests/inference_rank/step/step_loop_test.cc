#include "inference_rank/step/step_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "inference_rank/memory/slot_pool.h"

namespace winnow {
namespace {

using testing::ElementsAre;

constexpr uint32_t kVocab = 97;

uint32_t TokenAfter(uint32_t token, uint32_t position) {
  return (token * 31 + position * 7 + 5) % kVocab;
}

// A device that draws TokenAfter, keeps each row's token to itself as a GPU does, and finishes a step when it is asked
// to.
class FakeDevice final : public StepClient {
 public:
  int max_rows() const override { return 3; }
  uint32_t vocab_size() const override { return kVocab; }
  uint32_t pages_per_list() const override { return 2; }
  absl::Status Serves(const SelectionSpec&) const override { return absl::OkStatus(); }
  uint32_t IndexOf(const SelectionSpec&) const override { return 0; }
  absl::Status SetRow(int row, const StepSequence& sequence) override {
    EXPECT_EQ(sequence.pages.size(), 2u * 3 * 2) << "of the lists of both layers";
    if (!IsDense(*sequence.spec) && !takes_selections) return absl::ResourceExhaustedError("too many kinds");
    tokens_.erase(row);
    return absl::OkStatus();
  }
  std::vector<float> PastQueries(int /*row*/, uint32_t /*end*/) override { return {}; }
  void ClearRow(int row) override { cleared.push_back(row); }
  void Plan(std::span<const StepRow> rows) override { planned_.assign(rows.begin(), rows.end()); }
  absl::Status Launch() override {
    EXPECT_FALSE(awaits_draw_) << "the step before has not drawn";
    std::string what;
    Step step;
    for (const StepRow& row : planned_) {
      if (row.token_id.has_value()) tokens_[row.row] = *row.token_id;
      EXPECT_EQ(tokens_.count(row.row), 1u) << "row " << row.row << " has drawn nothing";
      what += absl::StrCat(what.empty() ? "" : " ", row.row, "@", row.position, row.token_id.has_value() ? "!" : "");
      tokens_[row.row] = TokenAfter(tokens_[row.row], row.position);
      if (!row.draw.has_value()) tokens_.erase(row.row);
      step.rows[row.row] = row;
      step.drawn[row.row] = tokens_.count(row.row) > 0 ? tokens_[row.row] : 0;
    }
    launched.push_back(what);
    under_way_.push_back(step);
    awaits_draw_ = true;
    EXPECT_LE(under_way_.size(), static_cast<size_t>(kMaxStepsUnderWay));
    return absl::OkStatus();
  }
  std::span<uint64_t> token_mask(int row) override { return masks_[row]; }
  // A row with a mask draws the first token that it may.
  absl::Status Draw(std::span<const int> masked_rows) override {
    EXPECT_TRUE(awaits_draw_);
    awaits_draw_ = false;
    for (const int row : masked_rows) {
      uint32_t id = 0;
      while ((masks_[row][id / 64] >> (id % 64) & 1) == 0) ++id;
      tokens_[row] = under_way_.back().drawn[row] = id;
    }
    return absl::OkStatus();
  }
  bool HasEnded() override {
    EXPECT_FALSE(under_way_.empty() || (awaits_draw_ && under_way_.size() == 1));
    return has_ended;
  }
  absl::Status Complete() override {
    EXPECT_FALSE(awaits_draw_ && under_way_.size() == 1);
    completed_ = under_way_.front();
    under_way_.pop_front();
    return fails ? absl::InternalError("the device is gone") : absl::OkStatus();
  }
  uint32_t drawn_token(int row) const override { return completed_.drawn.at(row); }
  std::span<float> logits(int row) const override {
    logits_.assign(kVocab, 0);
    logits_[(completed_.rows.at(row).position * 11) % kVocab] = 1;
    return logits_;
  }
  const std::byte* kv_rows(int) const override { return nullptr; }  // nobody is sent any
  // At even positions 3 rows of each list, which hold half of the mass; not measured elsewhere.
  StepSelection selection(int row) const override {
    if (completed_.rows.at(row).position % 2 != 0) return {};
    static constexpr std::array<float, 6> kMasses = {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f};
    return {.captured_masses = kMasses, .selected_rows = 3 * kMasses.size()};
  }

  std::vector<std::string> launched;  // "row@position", with ! where the host says the token
  std::vector<int> cleared;
  bool fails = false;
  bool has_ended = true;  // the oldest step
  bool takes_selections = true;

 private:
  struct Step {
    std::map<int, StepRow> rows;
    std::map<int, uint32_t> drawn;
  };
  std::vector<StepRow> planned_;
  std::map<int, uint32_t> tokens_;
  std::deque<Step> under_way_;
  Step completed_;
  std::array<std::array<uint64_t, 2>, 3> masks_ = {};
  bool awaits_draw_ = false;
  mutable std::vector<float> logits_;
};

class StepLoopTest : public testing::Test {
 protected:
  StepLoopTest()
      : slots_(SlotPool::Create(layout_.row_bytes(), 64).value()),
        transport_(NewInprocTransport({.incarnation = 1})),
        loop_(device_, StepRowsSender(*transport_, layout_, {}), layout_,
              {.draw_for =
                   [this](const Sequence& sequence, uint32_t) {
                     return chosen_.contains(&sequence) ? std::nullopt : std::optional<TokenDraw>(TokenDraw());
                   },
               .is_restricted = [this](const Sequence& sequence, uint32_t) { return restricted_.contains(&sequence); },
               .fill_mask =
                   [](Sequence& sequence, uint32_t, uint32_t vocab_size, std::span<uint64_t> mask) {
                     EXPECT_EQ(vocab_size, kVocab);
                     // What it holds already, plus one: a function of its last token.
                     const uint32_t only = (sequence.generated.back() + 1) % kVocab;
                     if (only == 0) return absl::FailedPreconditionError("nothing may follow");
                     mask[0] = mask[1] = 0;
                     mask[only / 64] = uint64_t{1} << (only % 64);
                     return absl::OkStatus();
                   },
               .take_token =
                   [this](Sequence& sequence, std::optional<uint32_t> drawn, std::span<float> logits) {
                     const uint32_t token =
                         drawn.has_value()
                             ? *drawn
                             : static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
                     sequence.generated.push_back(token);
                     logits_taken_ += !logits.empty();
                     const bool stops = token == stop_token_;
                     if (stops || sequence.generated.size() >= sequence.stopping.max_tokens()) {
                       sequence.cancelled = true;
                     }
                   }},
              metrics_) {}

  // Its prompt is computed, and its first token drawn.
  Sequence& NewSequence(uint32_t prompt, uint32_t max_tokens, std::vector<uint32_t> generated = {3},
                        const SelectionSpec& spec = {.predictor = Predictor::kDense,
                                                     .budget_tokens = kUnlimitedBudget}) {
    auto sequence = std::make_unique<Sequence>();
    sequence->sequence_id = sequences_.size() + 1;
    sequence->spec = spec;
    sequence->slot_order = SlotOrder::kByPosition;
    sequence->prompt.assign(prompt, 1);
    sequence->generated = std::move(generated);
    sequence->stopping.set_max_tokens(max_tokens);
    sequence->max_positions = prompt + max_tokens;
    sequence->next_position = prompt;
    sequence->state = Sequence::State::kDecoding;
    sequence->working_set.emplace(
        WorkingSet::Create(slots_, layout_, sequence->spec, sequence->max_positions, prompt, SlotOrder::kByPosition)
            .value());
    sequences_.push_back(std::move(sequence));
    EXPECT_EQ(loop_.Admit(*sequences_.back()), StepLoop::Admission::kHasRow);
    return *sequences_.back();
  }
  // Turns with all that have not ended, each of which leaves when it has, as an engine has it.
  bool Turn() {
    std::vector<Sequence*> rows;
    for (const auto& sequence : sequences_) {
      if (sequence->cancelled) loop_.Leave(*sequence);
      if (!sequence->cancelled) rows.push_back(sequence.get());
    }
    return loop_.Turn(rows);
  }
  static std::vector<uint32_t> Tokens(uint32_t prompt, uint32_t first, size_t count) {
    std::vector<uint32_t> tokens = {first};
    while (tokens.size() < count) tokens.push_back(TokenAfter(tokens.back(), prompt + tokens.size() - 1));
    return tokens;
  }

  const KvLayout layout_{2, 6, 3, 4, Dtype::kF32};
  SlotPool slots_;
  std::unique_ptr<Transport> transport_;
  InferenceRankMetrics metrics_{2};
  FakeDevice device_;
  uint32_t stop_token_ = kVocab;
  std::set<const Sequence*> chosen_, restricted_;
  size_t logits_taken_ = 0;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  StepLoop loop_;
};

TEST_F(StepLoopTest, LaunchesTheNextStepBeforeItKnowsTheTokenOfTheOneUnderWay) {
  Sequence& sequence = NewSequence(10, 5);
  EXPECT_TRUE(Turn());
  EXPECT_THAT(device_.launched, ElementsAre("0@10!"));
  EXPECT_EQ(sequence.generated.size(), 1u) << "nothing has come yet";
  EXPECT_TRUE(Turn());
  EXPECT_THAT(device_.launched, ElementsAre("0@10!", "0@11"));
  EXPECT_EQ(sequence.generated, Tokens(10, 3, 2));
  while (Turn()) {
  }
  EXPECT_EQ(sequence.generated, Tokens(10, 3, 5));
  EXPECT_EQ(device_.launched.size(), 4u) << "the last token is known to be the last: no step follows it";
  EXPECT_EQ(metrics_.local_rows_dropped, 0u);
  EXPECT_EQ(metrics_.local_steps, 4u);
  EXPECT_TRUE(loop_.idle());
}

TEST_F(StepLoopTest, DropsTheRowThatFollowsATokenThatEndsTheAnswer) {
  Sequence& sequence = NewSequence(10, 50, {4});
  stop_token_ = Tokens(10, 4, 4).back();
  while (Turn()) {
  }
  EXPECT_EQ(sequence.generated, Tokens(10, 4, 4));
  EXPECT_EQ(device_.launched.size(), 4u);
  EXPECT_EQ(metrics_.local_rows_dropped, 1u);
  EXPECT_EQ(sequence.next_position, 13u) << "the row too many is not the sequence's";
}

TEST_F(StepLoopTest, SequencesJoinAndLeaveBetweenStepsWithoutAnyOthersNotice) {
  Sequence& longest = NewSequence(10, 12);
  Turn();
  Sequence& brief = NewSequence(20, 3, {7});
  Turn();
  Turn();
  Turn();
  Sequence& late = NewSequence(30, 4, {9});
  while (Turn()) {
  }
  EXPECT_EQ(longest.generated, Tokens(10, 3, 12));
  EXPECT_EQ(brief.generated, Tokens(20, 7, 3));
  EXPECT_EQ(late.generated, Tokens(30, 9, 4));
  EXPECT_EQ(device_.launched[1], "0@11 1@20!");
  EXPECT_EQ(loop_.num_sequences(), 0);
}

TEST_F(StepLoopTest, ASequenceThatLeavesInFlightTakesNothingWithIt) {
  Sequence& one = NewSequence(10, 20);
  Sequence& other = NewSequence(20, 20, {7});
  Turn();
  Turn();
  loop_.Leave(one);
  EXPECT_EQ(one.step_row, -1);
  one.failure = absl::CancelledError("preempted");
  Turn();
  EXPECT_EQ(one.generated.size(), 2u);
  EXPECT_EQ(one.next_position, 11u);
  EXPECT_EQ(other.generated, Tokens(20, 7, 3));
  EXPECT_EQ(metrics_.local_rows_dropped, 1u);
  // Resumed, in whatever row, it says what it would have said.
  one.failure = absl::OkStatus();
  ASSERT_EQ(loop_.Admit(one), StepLoop::Admission::kHasRow);
  while (Turn()) {
  }
  EXPECT_EQ(one.generated, Tokens(10, 3, 20));
  EXPECT_EQ(other.generated, Tokens(20, 7, 20));
}

TEST_F(StepLoopTest, KnownTokensAreComputedAgainWithoutBeingDrawn) {
  const std::vector<uint32_t> known = Tokens(10, 3, 4);
  Sequence& sequence = NewSequence(10, 6, known);
  while (Turn()) {
  }
  EXPECT_EQ(sequence.generated, Tokens(10, 3, 6));
  EXPECT_THAT(device_.launched, ElementsAre("0@10!", "0@11!", "0@12!", "0@13!", "0@14"));
}

TEST_F(StepLoopTest, ARowWhoseTokenTheHostChoosesTakesPartOnceItHasBeenChosen) {
  Sequence& drawn = NewSequence(10, 20);
  Sequence& chosen = NewSequence(20, 4);
  chosen_.insert(&chosen);
  for (int i = 0; i < 6; ++i) Turn();
  EXPECT_THAT(device_.launched, ElementsAre("0@10! 1@20!", "0@11", "0@12 1@21!", "0@13", "0@14 1@22!", "0@15"));
  EXPECT_THAT(chosen.generated, ElementsAre(3, 20 * 11 % kVocab, 21 * 11 % kVocab, 22 * 11 % kVocab));
  while (Turn()) {
  }
  EXPECT_EQ(drawn.generated, Tokens(10, 3, 20)) << "the others do not wait for it";
}

TEST_F(StepLoopTest, WhatARowMayDrawIsWorkedOutWhileItsStepIsComputed) {
  Sequence& drawn = NewSequence(10, 6);
  Sequence& restricted = NewSequence(20, 6, {40});
  restricted_.insert(&restricted);
  while (Turn()) {
  }
  EXPECT_THAT(restricted.generated, ElementsAre(40, 41, 42, 43, 44, 45));
  EXPECT_EQ(drawn.generated, Tokens(10, 3, 6));
  EXPECT_THAT(device_.launched, ElementsAre("0@10! 1@20!", "0@11 1@21", "0@12 1@22", "0@13 1@23", "0@14 1@24"))
      << "no step waits for the host";
}

TEST_F(StepLoopTest, ARowThatMayDrawNothingFailsAlone) {
  Sequence& restricted = NewSequence(20, 6, {kVocab - 2});
  restricted_.insert(&restricted);
  Sequence& drawn = NewSequence(10, 6);
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(restricted.failure.message(), "nothing may follow");
  EXPECT_THAT(restricted.generated, ElementsAre(kVocab - 2, kVocab - 1));
  restricted.cancelled = true;
  while (Turn()) {
  }
  EXPECT_EQ(drawn.generated, Tokens(10, 3, 6));
}

TEST_F(StepLoopTest, ARestrictedRowThatLeavesInMidStepHasNoMask) {
  Sequence& restricted = NewSequence(20, 9, {40});
  restricted_.insert(&restricted);
  Turn();
  stop_token_ = 41;  // comes while the next step is computed
  Turn();
  EXPECT_TRUE(restricted.cancelled);
  while (Turn()) {
  }
  EXPECT_THAT(restricted.generated, ElementsAre(40, 41));
  EXPECT_TRUE(loop_.idle());
}

TEST_F(StepLoopTest, RowsThatWantTheirLogitsAreDrawnAllTheSame) {
  Sequence& sequence = NewSequence(10, 4);
  sequence.top_logprobs = 2;
  while (Turn()) {
  }
  EXPECT_EQ(sequence.generated, Tokens(10, 3, 4));
  EXPECT_EQ(logits_taken_, 3u);
  EXPECT_THAT(device_.launched, ElementsAre("0@10!", "0@11", "0@12"));
}

TEST_F(StepLoopTest, AdmitsAsManyAsTheDeviceHasRows) {
  Sequence& first = NewSequence(10, 4);
  NewSequence(10, 4);
  NewSequence(10, 4);
  const auto extra = [&](SelectionSpec spec, SlotOrder order) {
    auto sequence = std::make_unique<Sequence>();
    sequence->spec = std::move(spec);
    sequence->slot_order = order;
    sequence->max_positions = 14;
    sequence->working_set.emplace(WorkingSet::Create(slots_, layout_, sequence->spec, 14, 10, order).value());
    return sequence;
  };
  const auto dense = extra(first.spec, SlotOrder::kByPosition);
  const auto selected = extra({.budget_tokens = 16}, SlotOrder::kByPosition);
  const auto elsewhere = extra({.budget_tokens = 16}, SlotOrder::kParts);
  EXPECT_EQ(loop_.Admit(*dense), StepLoop::Admission::kByFrames) << "all rows are held";
  EXPECT_EQ(loop_.Admit(*selected), StepLoop::Admission::kWaits) << "no cache rank selects for it";
  loop_.Leave(first);
  EXPECT_EQ(device_.cleared, std::vector<int>{0});
  EXPECT_EQ(loop_.Admit(*elsewhere), StepLoop::Admission::kByFrames) << "its rows are not all here";
  device_.takes_selections = false;
  EXPECT_EQ(loop_.Admit(*selected), StepLoop::Admission::kWaits);
  device_.takes_selections = true;
  EXPECT_EQ(loop_.Admit(*selected), StepLoop::Admission::kHasRow);
  loop_.Leave(*selected);
  EXPECT_EQ(loop_.Admit(first), StepLoop::Admission::kHasRow);
}

// Mass is measured at even positions: what was selected there counts until the next ones.
TEST_F(StepLoopTest, CountsWhatIsSelectedAndItsMass) {
  const SelectionSpec spec{.budget_tokens = 8, .sink_tokens = 4, .recent_tokens = 32};
  Sequence& sequence = NewSequence(100, 4, {3}, spec);
  while (!sequence.cancelled) Turn();
  ASSERT_EQ(sequence.decode_steps, 3u) << "positions 100, 101 and 102";
  EXPECT_EQ(sequence.mass.count(), 2u * 6);
  EXPECT_DOUBLE_EQ(sequence.mass.mean(), 0.5);
  const uint64_t around = 4 + (100 - 64 + 1) + 4 + (101 - 64 + 1) + 4 + (102 - 64 + 1);
  EXPECT_EQ(sequence.attended_rows, 6 * (3 * 3 + around));
}

TEST_F(StepLoopTest, DrainTakesAllThatIsUnderWay) {
  Sequence& sequence = NewSequence(10, 20);
  Turn();
  Turn();
  EXPECT_EQ(sequence.steps_under_way, 1u);
  loop_.Drain();
  EXPECT_TRUE(loop_.idle());
  EXPECT_EQ(sequence.steps_under_way, 0u);
  EXPECT_EQ(sequence.generated, Tokens(10, 3, 3));
  Turn();
  EXPECT_EQ(device_.launched.back(), "0@12!") << "the host says what it knows";
}

TEST_F(StepLoopTest, BesideSomethingElseTwoStepsAreUnderWayAndNoneIsWaitedFor) {
  Sequence& sequence = NewSequence(10, 6);
  const std::vector<Sequence*> rows = {&sequence};
  device_.has_ended = false;
  loop_.Poll(rows);
  loop_.Poll(rows);
  loop_.Poll(rows);
  EXPECT_THAT(device_.launched, ElementsAre("0@10!", "0@11"));
  EXPECT_EQ(sequence.generated.size(), 1u);
  device_.has_ended = true;
  loop_.Poll(rows);
  EXPECT_THAT(device_.launched, ElementsAre("0@10!", "0@11", "0@12")) << "where one has ended another follows";
  EXPECT_EQ(sequence.generated, Tokens(10, 3, 2));
  EXPECT_EQ(metrics_.local_steps_beside_prompts, 3u);
  EXPECT_TRUE(Turn()) << "which goes on with two under way";
  while (Turn()) {
  }
  EXPECT_EQ(sequence.generated, Tokens(10, 3, 6));
  EXPECT_EQ(metrics_.local_rows_dropped, 0u);
  EXPECT_EQ(metrics_.local_steps_beside_prompts, 3u) << "the others were launched with nothing beside them";
}

TEST_F(StepLoopTest, BesideSomethingElseAStepDrawsOnceTheTokensBeforeItAreThere) {
  Sequence& restricted = NewSequence(10, 6);
  Sequence& free = NewSequence(20, 6, {7});
  restricted_.insert(&restricted);
  const std::vector<Sequence*> rows = {&restricted, &free};
  device_.has_ended = false;
  for (int i = 0; i < 3; ++i) loop_.Poll(rows);
  EXPECT_EQ(device_.launched.size(), 2u);
  device_.has_ended = true;
  while (!restricted.cancelled || !free.cancelled) loop_.Poll(rows);
  EXPECT_THAT(restricted.generated, ElementsAre(3, 4, 5, 6, 7, 8));
  EXPECT_EQ(free.generated, Tokens(20, 7, 6));
  loop_.Drain();
  EXPECT_TRUE(loop_.idle());
}

TEST_F(StepLoopTest, WhatIsUnderWayBesideSomethingElseCanBeDrained) {
  Sequence& restricted = NewSequence(10, 6);
  restricted_.insert(&restricted);
  const std::vector<Sequence*> rows = {&restricted};
  device_.has_ended = false;
  loop_.Poll(rows);
  loop_.Poll(rows);
  loop_.Drain();
  EXPECT_TRUE(loop_.idle());
  EXPECT_THAT(restricted.generated, ElementsAre(3, 4, 5));
  loop_.Leave(restricted);
  loop_.Poll(rows);
  EXPECT_EQ(device_.launched.size(), 2u) << "a sequence that has left takes no step";
}

TEST_F(StepLoopTest, NothingIsTakenFromADeviceThatHasFailed) {
  Sequence& sequence = NewSequence(10, 20);
  Turn();
  device_.fails = true;
  Turn();
  loop_.Drain();
  EXPECT_THAT(sequence.generated, ElementsAre(3));
  EXPECT_EQ(metrics_.local_steps, 0u);
}

}  // namespace
}  // namespace winnow
