#include "common/timeline/timeline.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace winnow {

std::string_view SpanName(Span span) {
  switch (span) {
    case Span::kPrefillChunk:
      return "prefill chunk";
    case Span::kStep:
      return "step";
    case Span::kLaunchStep:
      return "launch step";
    case Span::kAwaitStep:
      return "await step";
    case Span::kFinishStep:
      return "finish step";
    case Span::kPublish:
      return "publish";
    case Span::kAwaitRoom:
      return "await room";
    case Span::kAwaitRows:
      return "await rows";
    case Span::kTakeRows:
      return "take rows";
    case Span::kAwaitVerification:
      return "await verification";
    case Span::kAppend:
      return "append";
    case Span::kSelect:
      return "select";
    case Span::kSend:
      return "send";
    case Span::kVerify:
      return "verify";
    case Span::kProject:
      return "project";
    case Span::kPrefetch:
      return "prefetch";
    case Span::kAttendPrefix:
      return "attend prefix";
  }
  return "unknown";
}

void Timeline::Start() {
  const std::lock_guard lock(mutex_);
  events_.clear();
  events_.reserve(kMaxEvents);
  dropped_ = 0;
  recording_.store(true, std::memory_order_relaxed);
}

Timeline::Recording Timeline::Stop() {
  const std::lock_guard lock(mutex_);
  recording_.store(false, std::memory_order_relaxed);
  return {std::exchange(events_, {}), std::exchange(dropped_, 0)};
}

void Timeline::Add(Span span, uint16_t layer, uint64_t plan, uint32_t rows, Clock::time_point start,
                   Clock::time_point end) {
  using std::chrono::duration_cast;
  using std::chrono::nanoseconds;
  const int64_t start_ns = duration_cast<nanoseconds>(start.time_since_epoch()).count();
  const int64_t duration_ns =
      std::clamp<int64_t>(duration_cast<nanoseconds>(end - start).count(), 0, std::numeric_limits<uint32_t>::max());
  const std::lock_guard lock(mutex_);
  if (!recording()) return;  // stopped meanwhile
  if (events_.size() == kMaxEvents) {
    ++dropped_;
    return;
  }
  events_.push_back({.start_ns = start_ns,
                     .duration_ns = static_cast<uint32_t>(duration_ns),
                     .span = span,
                     .layer = layer,
                     .plan = plan,
                     .rows = rows});
}

}  // namespace winnow
