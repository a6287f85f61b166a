#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

namespace winnow {

// What a stretch of a rank's time was spent on.
enum class Span : uint8_t {
  kPrefillChunk,       // inference rank: a chunk of one prompt
  kStep,               // inference rank: a decode iteration
  kLaunchStep,         // a decode step over KV of the rank's own, or from GPU to GPU, is planned and launched
  kAwaitStep,          // inference rank: the end of such a step is waited for
  kFinishStep,         // inference rank: rows are sent and tokens taken, while the next one runs
  kPublish,            // inference rank: a layer's rows and queries are made resident and sent
  kAwaitRoom,          // inference rank: a prompt's rows wait for room on their way to the cache rank
  kAwaitRows,          // inference rank: a layer waits for its selection: what is not hidden behind compute
  kTakeRows,           // inference rank: a frame of rows that have come is written to slots
  kAwaitVerification,  // inference rank: a layer waits for the quality guard
  kAppend,             // cache rank: rows and queries arrive, of a layer or of a step
  kSelect,             // cache rank: a layer's rows are scored and selected
  kSend,               // cache rank: what a layer has selected is gathered and goes out
  kVerify,             // cache rank: real queries are checked and corrected
  kProject,            // cache rank: residuals become predicted queries
  kPrefetch,           // cache rank: rows are moved ahead of time
  kAttendPrefix,       // cache rank: a prompt's queries attend to its cached prefix
};
std::string_view SpanName(Span span);

inline constexpr uint16_t kNoLayer = 0xffff;

// One span. Times are those of std::chrono::steady_clock, which all processes of a host share.
struct TimelineEvent {
  int64_t start_ns = 0;
  uint32_t duration_ns = 0;  // saturates at 4.29 s
  Span span = Span::kStep;
  uint16_t layer = kNoLayer;
  uint64_t plan = 0;  // the iteration that it belongs to; 0: none
  uint32_t rows = 0;  // sequences
};

// What one thread of a process did, for as long as somebody records it. While nobody does, a span costs two relaxed
// loads and no clock read. Start, Stop and Add may come from any threads; spans beyond the capacity are counted, not
// kept.
class Timeline {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMaxEvents = 200'000;

  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  // Forgets what was recorded before and begins anew.
  void Start();
  // Ends the recording and hands it over; empty when none was under way.
  struct Recording {
    std::vector<TimelineEvent> events;  // by end time
    uint64_t dropped = 0;
  };
  Recording Stop();

  void Add(Span span, uint16_t layer, uint64_t plan, uint32_t rows, Clock::time_point start, Clock::time_point end);

 private:
  std::atomic<bool> recording_{false};
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<TimelineEvent> events_;
  uint64_t dropped_ = 0;
};

// Records the time from its construction to its end, if the timeline is being recorded then.
class TimelineSpan {
 public:
  TimelineSpan(Timeline& timeline, Span span, uint16_t layer, uint64_t plan, uint32_t rows)
      : timeline_(timeline.recording() ? &timeline : nullptr), span_(span), layer_(layer), plan_(plan), rows_(rows) {
    if (timeline_ != nullptr) start_ = Timeline::Clock::now();
  }
  ~TimelineSpan() {
    if (timeline_ != nullptr) timeline_->Add(span_, layer_, plan_, rows_, start_, Timeline::Clock::now());
  }
  TimelineSpan(const TimelineSpan&) = delete;
  TimelineSpan& operator=(const TimelineSpan&) = delete;

 private:
  Timeline* const timeline_;
  const Span span_;
  const uint16_t layer_;
  const uint64_t plan_;
  const uint32_t rows_;
  Timeline::Clock::time_point start_;
};

}  // namespace winnow
