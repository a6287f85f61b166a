#include "inference_rank/service/rank_service.h"

#include <deque>
#include <memory>
#include <mutex>

#include "common/rpc/trace_carriers.h"
#include "inference_rank/sequence/failed_event.h"
#include "inference_rank/sequence/sequence_spans.h"

namespace winnow {
namespace {

using Reactor = grpc::ServerBidiReactor<v1::DispatchRequest, v1::DispatchResponse>;

// Tokens that a router may leave unread before its stream is given up: far more than a router that works ever has.
constexpr size_t kMaxQueuedEvents = 65536;

// The write side of one stream: outlives the reactor in the hands of its sequences.
class StreamSink final : public EventSink {
 public:
  explicit StreamSink(Reactor* reactor) : reactor_(reactor) {}

  void Send(v1::DispatchResponse event) override {
    std::lock_guard lock(mutex_);
    if (closing_) return;
    queue_.push_back(std::move(event));
    if (queue_.size() > kMaxQueuedEvents) {
      closing_ = true;
      if (!writing_) FinishLocked(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "events are not read"));
      return;
    }
    if (!writing_) WriteNextLocked();
  }

  void OnWriteDone(bool ok) {
    std::lock_guard lock(mutex_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) closing_ = true;
    if (closing_) return FinishLocked(grpc::Status::OK);
    if (!queue_.empty()) WriteNextLocked();
  }

  // No more events; the call ends once the write under way is done.
  void Close() {
    std::lock_guard lock(mutex_);
    closing_ = true;
    if (!writing_) FinishLocked(grpc::Status::OK);
  }

 private:
  void WriteNextLocked() {
    writing_ = true;
    reactor_->StartWrite(&queue_.front());
  }
  void FinishLocked(const grpc::Status& status) {
    if (std::exchange(finished_, true)) return;
    reactor_->Finish(status);
  }

  Reactor* const reactor_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::deque<v1::DispatchResponse> queue_;
  bool writing_ = false;
  bool closing_ = false;
  bool finished_ = false;
};

class DispatchReactor final : public Reactor {
 public:
  DispatchReactor(Engine& engine, ResumableRequests& resumable, const SubmitLimits& limits, SpanSink* spans)
      : engine_(engine),
        resumable_(resumable),
        limits_(limits),
        spans_(spans),
        sink_(std::make_shared<StreamSink>(this)) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      engine_.CancelAll(sink_);
      resumable_.StreamEnded(sink_.get());
      sink_->Close();
      return;
    }
    Handle();
    StartRead(&request_);
  }
  void OnWriteDone(bool ok) override { sink_->OnWriteDone(ok); }
  void OnCancel() override {}  // the pending read fails, too: see OnReadDone
  void OnDone() override { delete this; }

 private:
  void Handle() {
    if (request_.has_cancel()) Cancel(request_.cancel());
    if (request_.has_leave()) resumable_.Leave(sink_.get(), request_.leave());
    if (request_.has_submit()) Submit(request_.submit());
    if (request_.has_resume()) {
      const absl::Status resumed = resumable_.Resume(request_.resume(), sink_);
      if (!resumed.ok()) Refuse(request_.resume().request_id(), resumed);
    }
  }

  void Cancel(const v1::DispatchRequest::Cancel& cancel) {
    if (!cancel.resume_key().empty()) {
      resumable_.FreeKey(cancel.resume_key(), cancel.tenant());
      return Refuse(cancel.request_id(), absl::CancelledError("the output is not here any more"));
    }
    if (!resumable_.Free(sink_.get(), cancel.request_id())) engine_.Cancel(sink_, cancel.request_id());
  }

  void Submit(const v1::DispatchRequest::Submit& submit) {
    absl::StatusOr<std::unique_ptr<Sequence>> sequence = MakeSequence(submit, limits_);
    if (!sequence.ok()) return Refuse(submit.request_id(), sequence.status());
    (*sequence)->sink = sink_;
    if (!submit.resume_key().empty()) {
      absl::StatusOr<std::shared_ptr<EventSink>> kept = resumable_.Begin(submit, sink_);
      if (!kept.ok()) return Refuse(submit.request_id(), kept.status());
      (*sequence)->sink = *std::move(kept);
    }
    (*sequence)->spans = SpansOf(submit);
    engine_.Submit(*std::move(sequence));
  }

  std::shared_ptr<SequenceSpans> SpansOf(const v1::DispatchRequest::Submit& submit) const {
    if (spans_ == nullptr) return nullptr;
    const std::optional<TraceContext> attempt = TraceOf(submit);
    return attempt && attempt->sampled ? std::make_shared<SequenceSpans>(spans_, *attempt) : nullptr;
  }

  void Refuse(uint64_t request_id, const absl::Status& status) { sink_->Send(FailedEvent(request_id, status)); }

  Engine& engine_;
  ResumableRequests& resumable_;
  const SubmitLimits limits_;
  SpanSink* const spans_;  // null: nothing is traced
  const std::shared_ptr<StreamSink> sink_;
  v1::DispatchRequest request_;
};

}  // namespace

RankServiceImpl::RankServiceImpl(Engine& engine, InferenceRankMetrics& metrics, const SubmitLimits& limits,
                                 const ResumeLimits& resume_limits, SpanSink* spans)
    : engine_(engine),
      limits_(limits),
      spans_(spans),
      resumable_(
          resume_limits,
          [this](std::shared_ptr<EventSink> sink, uint64_t request_id) { engine_.Cancel(std::move(sink), request_id); },
          metrics) {}

Reactor* RankServiceImpl::Dispatch(grpc::CallbackServerContext*) {
  return new DispatchReactor(engine_, resumable_, limits_, spans_);
}

}  // namespace winnow
