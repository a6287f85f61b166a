#pragma once
#include <array>
#include <cstddef>

#include "inference_rank/scheduler/recent_quantile.h"

namespace winnow {

// Says how much prefill an iteration may compute before its decode step, so that the time between a stream's tokens
// stays below a target in all but one of a hundred. Measured times in, work that fits out (in units of the caller's
// choice that cost about the same, see PrefillWork); no clock.
//
// An iteration has until its aim, four fifths of the target after the last token; the rest is for what happens to
// tokens on their way to clients, which is not seen here. Of that, it leaves to the decode step what 99 of 100 recent
// ones took beside prefill or alone, so that the tail of steps is what is planned for, and uses the rest up piece by
// piece: a piece that took longer than foreseen makes the next ones smaller, in the same iteration.
//
// A tail that comes from elsewhere cannot be helped here and must not stop prompts: what is left to the step is at most
// half of the target, or the median step where that is longer. And where the target leaves nothing, a prompt still gets
// a fifth of the time: what it did not get is saved up until a piece fits into that.
//
// A piece is expected to take fixed + rate * work, as fitted to recent ones (least squares of relative errors), times
// the slack that 95 of 100 of them need, at most 1.5. On a GPU, which reads all weights for however few tokens, the
// fixed part is that of some hundred tokens: a piece that would be little else waits for more room. None is more than
// twice as large as all of them, or the least piece where that is larger.
class InjectController {
 public:
  explicit InjectController(double target_us);

  // What is left to prefill when `since_token_us` have passed since the last token; may be negative.
  double RoomUs(double since_token_us) const;
  // The most work that is over within `room_us`; a piece of less than `least_work` is of no use to the caller. Before
  // anything was measured `least_work`.
  double WorkWithin(double room_us, double least_work) const;

  void ObservePrefill(double work, double us);
  // A decode step is over; while it ran a prompt waited to go on, or none did.
  void ObserveDecode(double us, bool prompt_waits);

 private:
  struct Piece {
    double work = 0, us = 0;
    double scale_us = 0;  // what errors are measured by: the longer of what it took and what was expected
  };
  void Fit();

  const double target_us_;  // constant after construction
  RecentQuantile<256> decode_us_;
  double saved_us_ = 0;            // of a waiting prompt's share
  std::array<Piece, 256> pieces_;  // the latest, in a ring
  size_t num_pieces_ = 0;          // ever
  double fixed_us_ = 0;
  double us_per_work_ = 0;
  double slack_ = 1;
  double largest_work_ = 0;
};

}  // namespace winnow
