#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>

#include "common/base/status.h"

namespace winnow {

// Whether anything comes of what a rank is asked for. One that lives and on which every attempt fails, as where no data
// plane opens any more, is of no use: it says so, so that routers send it nothing while there are others, and whoever
// looks after it starts it anew. Thread-safe.
class FailureRun {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // So many attempts have failed, one after the other, over so long a time, and no token has come between them. What
  // fails within kAtOnce has one cause, such as the end of a cache rank, and counts once.
  static constexpr uint32_t kFailures = 5;
  static constexpr std::chrono::seconds kLeastTime{10};
  static constexpr std::chrono::milliseconds kAtOnce{50};
  // After the last failure: a rank that nobody has started anew may be tried again.
  static constexpr std::chrono::minutes kForgotten{5};

  // An attempt that another rank might have brought to its end has failed here.
  void Failed(const absl::Status& why, Time now);
  // A token has come. Costs next to nothing where nothing has failed; for the thread that calls Failed.
  void Succeeded() {
    if (failures_ > 0) Forget();
  }

  // UNAVAILABLE says what fails here.
  absl::Status At(Time now) const;

 private:
  void Forget();

  uint32_t failures_ = 0;  // of the calling thread; changed under mutex_
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  Time first_, last_;
  absl::Status why_;  // the last one
};

}  // namespace winnow
