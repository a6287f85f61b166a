#include "inference_rank/service/resumable_requests.h"

#include <algorithm>
#include <utility>

#include "inference_rank/sequence/failed_event.h"

namespace winnow {
namespace {

constexpr size_t kMaxKeyBytes = 64;

// How often what is held is looked at: answers end and grow without a word.
constexpr std::chrono::milliseconds kSweepInterval{250};

}  // namespace

ResumableRequests::ResumableRequests(const ResumeLimits& limits, Cancel cancel, InferenceRankMetrics& metrics)
    : limits_(limits), cancel_(std::move(cancel)), metrics_(metrics) {}

ResumableRequests::~ResumableRequests() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::shared_ptr<EventSink>> ResumableRequests::Begin(const v1::DispatchRequest::Submit& submit,
                                                                    const std::shared_ptr<EventSink>& stream) {
  if (submit.resume_key().size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("resume_key has ", submit.resume_key().size(), " bytes, at most ", kMaxKeyBytes));
  }
  auto answer = std::make_shared<ResumableAnswer>(submit, stream);
  std::lock_guard lock(mutex_);
  Held& held = requests_[submit.resume_key()];
  if (held.answer != nullptr) {
    const ResumableAnswer& earlier = *held.answer;
    const bool is_left =
        earlier.is_detached() || earlier.has_ended() || (earlier.is_handed_over() && earlier.IsToldTo(stream.get()));
    if (!is_left) return absl::AbortedError("the answer was resumed by another call");
    // One that attaches takes the sequence over from what runs here; its end must not free it.
    if (!submit.attach()) Stop(held.answer);
  }
  held = {.answer = answer, .since = std::nullopt};
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  if (requests_.size() == 1) changed_.notify_all();
  return answer;
}

absl::Status ResumableRequests::Resume(const v1::DispatchRequest::Resume& resume,
                                       const std::shared_ptr<EventSink>& stream) {
  std::lock_guard lock(mutex_);
  const auto it = requests_.find(resume.resume_key());
  if (it == requests_.end() || it->second.answer->tenant() != resume.tenant()) {
    return absl::NotFoundError("the request is not on this rank");
  }
  it->second.since.reset();
  it->second.answer->ResumeTo(stream, resume.request_id());
  ++metrics_.resumed_requests;
  UpdateGauge();
  return absl::OkStatus();
}

bool ResumableRequests::Leave(const EventSink* stream, const v1::DispatchRequest::Leave& leave) {
  std::lock_guard lock(mutex_);
  const auto it = Find(stream, leave.request_id());
  if (it == requests_.end()) return false;
  it->second.answer->Detach(stream);
  if (leave.stop()) {
    Stop(it->second.answer);
    // Whoever resumes it, and does not find the same end, computes it again.
    v1::DispatchResponse stopped = FailedEvent(leave.request_id(), absl::AbortedError("the answer was ended"));
    stopped.mutable_failed()->set_retryable(true);
    stopped.mutable_failed()->set_sequence_lost(true);
    it->second.answer->Send(std::move(stopped));
  }
  Sweep(Clock::now());
  return true;
}

bool ResumableRequests::Free(const EventSink* stream, uint64_t request_id) {
  std::lock_guard lock(mutex_);
  const auto it = Find(stream, request_id);
  if (it == requests_.end()) return false;
  it->second.answer->Detach(stream);
  Stop(it->second.answer);
  Forget(it);
  return true;
}

void ResumableRequests::FreeKey(const std::string& resume_key, const std::string& tenant) {
  std::lock_guard lock(mutex_);
  const auto it = requests_.find(resume_key);
  if (it == requests_.end() || it->second.answer->tenant() != tenant) return;
  Stop(it->second.answer);
  if (!it->second.answer->has_ended()) {
    ResumableAnswer& answer = *it->second.answer;
    answer.Send(FailedEvent(answer.sequence_request_id(), absl::CancelledError("the request was aborted")));
  }
  Forget(it);
}

void ResumableRequests::StreamEnded(const EventSink* stream) {
  std::lock_guard lock(mutex_);
  for (auto& [key, held] : requests_) held.answer->Detach(stream);
  Sweep(Clock::now());
}

ResumableRequests::Table::iterator ResumableRequests::Find(const EventSink* stream, uint64_t request_id) {
  return std::find_if(requests_.begin(), requests_.end(),
                      [&](const auto& entry) { return entry.second.answer->IsToldTo(stream, request_id); });
}

void ResumableRequests::Stop(const std::shared_ptr<ResumableAnswer>& answer) {
  cancel_(answer, answer->sequence_request_id());
}

void ResumableRequests::Forget(Table::iterator it) {
  requests_.erase(it);
  UpdateGauge();
}

void ResumableRequests::UpdateGauge() {
  metrics_.held_requests = static_cast<uint64_t>(std::count_if(
      requests_.begin(), requests_.end(), [](const auto& entry) { return entry.second.since.has_value(); }));
}

void ResumableRequests::Sweep(Clock::time_point now) {
  size_t held = 0, bytes = 0;
  for (auto it = requests_.begin(); it != requests_.end();) {
    Held& request = it->second;
    const bool is_held = request.answer->is_detached() || request.answer->has_ended();
    if (is_held && !request.since) request.since = now;
    const bool is_over = request.since && now - *request.since >= limits_.grace;
    if (is_over && !request.answer->has_ended()) {
      ++metrics_.expired_requests;
      Stop(request.answer);
    }
    if (is_over || request.answer->failure_was_told()) {
      it = requests_.erase(it);
      continue;
    }
    if (request.since) {
      ++held;
      bytes += request.answer->bytes();
    }
    ++it;
  }
  while (held > 0 && (held > limits_.max_held || bytes > limits_.max_held_bytes)) {
    const auto oldest = std::min_element(requests_.begin(), requests_.end(), [](const auto& a, const auto& b) {
      return a.second.since.value_or(Clock::time_point::max()) < b.second.since.value_or(Clock::time_point::max());
    });
    --held;
    bytes -= std::min(bytes, oldest->second.answer->bytes());
    ++metrics_.expired_requests;
    Stop(oldest->second.answer);
    requests_.erase(oldest);
  }
  UpdateGauge();
}

void ResumableRequests::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (requests_.empty()) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, kSweepInterval);
    }
    Sweep(Clock::now());
  }
}

}  // namespace winnow
