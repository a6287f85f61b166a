#include "inference_rank/scheduler/inject_controller.h"

#include <algorithm>

namespace winnow {
namespace {

constexpr double kAim = 0.8;  // of the target
constexpr double kTail = 0.99;
constexpr double kMostForStep = 0.5;  // of the target, unless the median step takes longer
constexpr double kLeastShare = 0.2;   // of the time, for a prompt that waits
constexpr double kSlackShare = 0.95;
constexpr double kMostSlack = 1.5;
constexpr double kMostGrowth = 2;  // of a piece over the largest before it
// Of the fixed part of a piece, the least that its work must take: where steps leave room for it, and where a prompt's
// share has been saved up, which can be done for longer.
constexpr double kWorthInRoom = 0.15, kWorthSaved = 0.5;
// Draws the fixed part towards 0 where pieces are too much alike to tell it from the rest.
constexpr double kRidge = 0.002;

}  // namespace

InjectController::InjectController(double target_us) : target_us_(target_us) {}

double InjectController::RoomUs(double since_token_us) const {
  if (decode_us_.empty()) return 0;
  const double bound = std::max(kMostForStep * target_us_, decode_us_.At(0.5));
  return std::max(kAim * target_us_ - since_token_us - std::min(decode_us_.At(kTail), bound), saved_us_);
}

double InjectController::WorkWithin(double room_us, double least_work) const {
  if (room_us <= 0) return 0;
  if (num_pieces_ == 0) return least_work;
  const double work_us = room_us / slack_ - fixed_us_;
  if (work_us < (room_us > saved_us_ ? kWorthInRoom : kWorthSaved) * fixed_us_) return 0;
  return std::min(work_us / us_per_work_, std::max(kMostGrowth * largest_work_, least_work));
}

void InjectController::ObserveDecode(double us, bool prompt_waits) {
  decode_us_.Add(us);
  saved_us_ = prompt_waits ? saved_us_ + us * kLeastShare / (1 - kLeastShare) : 0;
}

void InjectController::ObservePrefill(double work, double us) {
  us = std::max(us, 1e-3);
  saved_us_ = std::max(saved_us_ - us, 0.0);
  const double expected_us = fixed_us_ + us_per_work_ * work;
  pieces_[num_pieces_++ % pieces_.size()] = {.work = work, .us = us, .scale_us = std::max(us, expected_us)};
  Fit();
}

void InjectController::Fit() {
  // Of (fixed + rate * work - us) / scale_us: a piece that was interrupted, or was over at once, hardly matters.
  double ones = 0, works = 0, squares = 0, to_ones = 0, to_works = 0;
  const size_t count = std::min(num_pieces_, pieces_.size());
  double shortest_us = pieces_[0].us;
  largest_work_ = 0;
  for (size_t i = 0; i < count; ++i) {
    largest_work_ = std::max(largest_work_, pieces_[i].work);
    shortest_us = std::min(shortest_us, pieces_[i].us);
    const double one = 1 / pieces_[i].scale_us, work = pieces_[i].work / pieces_[i].scale_us;
    const double us = pieces_[i].us / pieces_[i].scale_us;
    ones += one * one;
    works += one * work;
    squares += work * work;
    to_ones += one * us;
    to_works += work * us;
  }
  ones *= 1 + kRidge;
  const double determinant = ones * squares - works * works;
  // The fixed part is in every piece.
  fixed_us_ = std::clamp((to_ones * squares - to_works * works) / determinant, 0.0, 0.9 * shortest_us);
  us_per_work_ = (to_works - fixed_us_ * works) / squares;
  RecentQuantile<256> slacks;
  for (size_t i = 0; i < count; ++i) slacks.Add(pieces_[i].us / (fixed_us_ + us_per_work_ * pieces_[i].work));
  slack_ = std::clamp(slacks.At(kSlackShare), 1.0, kMostSlack);
}

}  // namespace winnow
