#include "cmd/role/liveness.h"

namespace winnow {

absl::Status Liveness::Observe(const v1::RankLoad& load, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const bool has_work = load.running_sequences() > 0;
  if (!has_work || !had_work_ || load.progress_count() != progress_) since_ = now;
  had_work_ = has_work;
  progress_ = load.progress_count();
  const auto still = std::chrono::duration_cast<std::chrono::seconds>(now - since_);
  if (still < kLongestStandstill) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      load.running_sequences(), " sequences run, and nothing has been computed for ", still.count(), " s"));
}

}  // namespace winnow
