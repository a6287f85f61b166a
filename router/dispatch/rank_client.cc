#include "router/dispatch/rank_client.h"

#include <algorithm>

namespace winnow {

// Lives until gRPC's last reaction to it (OnDone), whatever becomes of its RankClient.
class RankClient::Stream final : public grpc::ClientBidiReactor<v1::DispatchRequest, v1::DispatchResponse> {
 public:
  Stream(const std::shared_ptr<grpc::Channel>& channel, Options options,
         std::function<void(const absl::Status&)> on_lost)
      : options_(options), stub_(v1::RankService::NewStub(channel)), on_lost_(std::move(on_lost)) {}

  void Open(const v1::Identity& self, std::shared_ptr<Stream> me) {
    me_ = std::move(me);
    *writing_.mutable_hello()->mutable_identity() = self;
    stub_->async()->Dispatch(&context_, this);
    AddHold();  // writes start outside of reactions
    StartRead(&reading_);
    StartWrite(&writing_);
    StartCall();
  }

  // `request`: Submit, Resume or Cancel by key with this id.
  absl::Status Begin(uint64_t id, v1::DispatchRequest request, Handler handler) {
    const size_t bytes = request.ByteSizeLong();
    std::lock_guard lock(mutex_);
    if (lost_) return absl::UnavailableError("the stream to the inference rank has ended");
    if (queued_bytes_ + bytes > options_.max_queued_bytes && !queue_.empty()) {
      return absl::UnavailableError("the queue to the inference rank is full");
    }
    handlers_.emplace(id, std::make_shared<Handler>(std::move(handler)));
    queue_.push_back({std::move(request), bytes});
    queued_bytes_ += bytes;
    WriteNext();
    return absl::OkStatus();
  }

  // `request`: Cancel or Leave with this id.
  void End(uint64_t request_id, v1::DispatchRequest request) {
    std::shared_ptr<Handler> dropped;  // destroyed without the lock
    std::lock_guard lock(mutex_);
    const auto handler = handlers_.find(request_id);
    if (handler == handlers_.end()) return;
    dropped = std::move(handler->second);
    handlers_.erase(handler);
    if (lost_) return;
    const auto unsent = std::find_if(queue_.begin(), queue_.end(), [&](const Queued& queued) {
      return (queued.message.has_submit() && queued.message.submit().request_id() == request_id) ||
             (queued.message.has_resume() && queued.message.resume().request_id() == request_id);
    });
    if (unsent != queue_.end()) {
      queued_bytes_ -= unsent->bytes;
      queue_.erase(unsent);
      return;
    }
    queue_.push_back({std::move(request), 0});
    WriteNext();
  }

  void Close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    context_.TryCancel();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Lost();
    const uint64_t id = reading_.request_id();
    std::shared_ptr<Handler> handler;
    {
      std::lock_guard lock(mutex_);
      const auto it = handlers_.find(id);
      if (it != handlers_.end()) {
        handler = it->second;
        // A sequence that was handed over may still be cancelled.
        const bool is_last = reading_.has_finished() || reading_.has_failed();
        if (is_last || reading_.event_case() == v1::DispatchResponse::EVENT_NOT_SET) handlers_.erase(it);
      }
    }
    if (handler) (*handler)(std::move(reading_));
    reading_.Clear();
    StartRead(&reading_);
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    write_in_flight_ = false;
    if (ok && !lost_) WriteNext();
  }

  void OnDone(const grpc::Status&) override { me_.reset(); }

 private:
  struct Queued {
    v1::DispatchRequest message;
    size_t bytes = 0;
  };

  void WriteNext() {  // mutex_ held
    if (write_in_flight_ || queue_.empty()) return;
    writing_ = std::move(queue_.front().message);
    queued_bytes_ -= queue_.front().bytes;
    queue_.pop_front();
    write_in_flight_ = true;
    StartWrite(&writing_);
  }

  // The only read that fails is the last one, so this runs once.
  void Lost() {
    std::unordered_map<uint64_t, std::shared_ptr<Handler>> handlers;
    bool closed;
    {
      std::lock_guard lock(mutex_);
      lost_ = true;
      closed = closed_;
      handlers.swap(handlers_);
      queue_.clear();
      queued_bytes_ = 0;
    }
    context_.TryCancel();  // the rank may have ended its side only
    RemoveHold();
    const absl::Status status = closed ? absl::CancelledError("the stream to the inference rank was closed")
                                       : absl::UnavailableError("the inference rank was lost");
    if (!closed && on_lost_) on_lost_(status);
    for (const auto& [id, handler] : handlers) (*handler)(status);
  }

  const Options options_;
  const std::unique_ptr<v1::RankService::Stub> stub_;
  const std::function<void(const absl::Status&)> on_lost_;
  grpc::ClientContext context_;

  // Touched by gRPC's reactions alone.
  v1::DispatchResponse reading_;
  std::shared_ptr<Stream> me_;  // until OnDone

  std::mutex mutex_;
  bool lost_ = false;
  bool closed_ = false;
  bool write_in_flight_ = true;  // Hello
  v1::DispatchRequest writing_;  // unchanged while a write is in flight
  std::deque<Queued> queue_;
  size_t queued_bytes_ = 0;
  std::unordered_map<uint64_t, std::shared_ptr<Handler>> handlers_;
};

RankClient::RankClient(const std::shared_ptr<grpc::Channel>& channel, const v1::Identity& self, Options options,
                       std::function<void(const absl::Status&)> on_lost, std::shared_ptr<void> released)
    : stream_(new Stream(channel, options, std::move(on_lost)),
              [released = std::move(released)](Stream* stream) mutable {
                delete stream;
                released.reset();
              }) {
  stream_->Open(self, stream_);
}

RankClient::~RankClient() {
  Close();
}

absl::Status RankClient::Submit(v1::DispatchRequest::Submit submit, Handler handler) {
  const uint64_t id = submit.request_id();
  v1::DispatchRequest request;
  *request.mutable_submit() = std::move(submit);
  return stream_->Begin(id, std::move(request), std::move(handler));
}

absl::Status RankClient::Resume(v1::DispatchRequest::Resume resume, Handler handler) {
  const uint64_t id = resume.request_id();
  v1::DispatchRequest request;
  *request.mutable_resume() = std::move(resume);
  return stream_->Begin(id, std::move(request), std::move(handler));
}

void RankClient::Cancel(uint64_t request_id) {
  v1::DispatchRequest request;
  request.mutable_cancel()->set_request_id(request_id);
  stream_->End(request_id, std::move(request));
}

void RankClient::Leave(uint64_t request_id, bool stop) {
  v1::DispatchRequest request;
  request.mutable_leave()->set_request_id(request_id);
  request.mutable_leave()->set_stop(stop);
  stream_->End(request_id, std::move(request));
}

absl::Status RankClient::Free(uint64_t request_id, const std::string& resume_key, const std::string& tenant,
                              Handler handler) {
  v1::DispatchRequest request;
  request.mutable_cancel()->set_request_id(request_id);
  request.mutable_cancel()->set_resume_key(resume_key);
  request.mutable_cancel()->set_tenant(tenant);
  return stream_->Begin(request_id, std::move(request), std::move(handler));
}

void RankClient::Close() {
  stream_->Close();
}

}  // namespace winnow
