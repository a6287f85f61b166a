#include "inference_rank/step/steps_under_way.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace winnow {

std::optional<StepRow> StepsUnderWay::NextOf(const Sequence& sequence) const {
  if (sequence.cancelled || !sequence.failure.ok()) return std::nullopt;
  StepRow next{.position = sequence.next_step_position()};
  if (next.position < sequence.known_tokens()) {
    next.token_id = sequence.token_at(next.position);
    return next;
  }
  // Its token is that of the step under way: one that the device has, and not the last of the answer.
  WINNOW_CHECK(sequence.steps_under_way > 0);
  const std::vector<Row>& rows = newest().rows;
  const auto before = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.sequence == &sequence; });
  WINNOW_CHECK(before != rows.end() && next.position == sequence.known_tokens());
  const bool goes_on = sequence.generated.size() + 1 < sequence.stopping.max_tokens() && !sequence.hand_over &&
                       next.position < sequence.max_positions;
  if (!before->is_drawn || !goes_on) return std::nullopt;
  return next;
}

void StepsUnderWay::Add(Step step) {
  for (const Row& row : step.rows) ++row.sequence->steps_under_way;
  steps_.push_back(std::move(step));
}

StepsUnderWay::Step StepsUnderWay::TakeOldest() {
  Step step = std::move(steps_.front());
  steps_.pop_front();
  for (const Row& row : step.rows) {
    if (row.sequence != nullptr) --row.sequence->steps_under_way;
  }
  return step;
}

void StepsUnderWay::Forget(Sequence& sequence) {
  for (Step& step : steps_) {
    for (Row& row : step.rows) {
      if (row.sequence == &sequence) row.sequence = nullptr;
    }
  }
  sequence.steps_under_way = 0;
}

bool StepsUnderWay::draws_all_tokens() const {
  return std::all_of(newest().rows.begin(), newest().rows.end(),
                     [](const Row& row) { return row.is_drawn || !row.is_wanted(); });
}

}  // namespace winnow
