#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "inference_rank/metrics.h"
#include "inference_rank/service/resumable_answer.h"

namespace winnow {

// How long, and how much of, answers are kept that nobody listens to.
struct ResumeLimits {
  std::chrono::milliseconds grace{30'000};
  size_t max_held = 256;
  size_t max_held_bytes = size_t{64} << 20;  // of tokens and what was told with them
};

// The requests of an inference rank that outlive the stream they came on. Once nobody listens to one, or it has ended,
// it is held for the grace; then it is freed, and earlier where too many are held, the one that has been held longest
// first. Thread-safe.
class ResumableRequests {
 public:
  // Ends a sequence that has this sink, if there is one.
  using Cancel = std::function<void(std::shared_ptr<EventSink> sink, uint64_t request_id)>;

  ResumableRequests(const ResumeLimits& limits, Cancel cancel, InferenceRankMetrics& metrics);
  ~ResumableRequests();

  // The sink for the sequence of a Submit that has a resume_key. It takes the place of an earlier attempt here that has
  // ended, or that nobody listens to; ABORTED where somebody does.
  absl::StatusOr<std::shared_ptr<EventSink>> Begin(const v1::DispatchRequest::Submit& submit,
                                                   const std::shared_ptr<EventSink>& stream);
  // NOT_FOUND where it is not here, or is another tenant's.
  absl::Status Resume(const v1::DispatchRequest::Resume& resume, const std::shared_ptr<EventSink>& stream);
  // Each is false where the stream has no such request.
  bool Leave(const EventSink* stream, const v1::DispatchRequest::Leave& leave);
  bool Free(const EventSink* stream, uint64_t request_id);
  // Ends what the tenant has with this key; whoever listens to it is told.
  void FreeKey(const std::string& resume_key, const std::string& tenant);
  void StreamEnded(const EventSink* stream);

 private:
  using Clock = std::chrono::steady_clock;
  struct Held {
    std::shared_ptr<ResumableAnswer> answer;
    std::optional<Clock::time_point> since;  // nobody listens, or it has ended
  };
  using Table = std::map<std::string, Held>;

  // All with mutex_ held.
  Table::iterator Find(const EventSink* stream, uint64_t request_id);
  void Stop(const std::shared_ptr<ResumableAnswer>& answer);
  void Sweep(Clock::time_point now);
  void Forget(Table::iterator it);
  void UpdateGauge();

  void Run();

  const ResumeLimits limits_;
  const Cancel cancel_;
  InferenceRankMetrics& metrics_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  Table requests_;  // by resume_key
  bool stopping_ = false;
  std::thread thread_;  // from the first request on
};

}  // namespace winnow
