#include "inference_rank/engine/failure_run.h"

namespace winnow {

void FailureRun::Failed(const absl::Status& why, Time now) {
  const std::lock_guard lock(mutex_);
  if (failures_ > 0 && now - last_ > kForgotten) failures_ = 0;
  why_ = why;
  if (failures_ > 0 && now - last_ < kAtOnce) return;
  if (failures_++ == 0) first_ = now;
  last_ = now;
}

void FailureRun::Forget() {
  const std::lock_guard lock(mutex_);
  failures_ = 0;
}

absl::Status FailureRun::At(Time now) const {
  const std::lock_guard lock(mutex_);
  if (failures_ < kFailures || last_ - first_ < kLeastTime || now - last_ > kForgotten) return absl::OkStatus();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - first_).count();
  return absl::UnavailableError(absl::StrCat("every attempt has failed for ", seconds, " s, the last one of ",
                                             failures_, " with: ", why_.message()));
}

}  // namespace winnow
