#include "inference_rank/links/cache_link.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "common/rpc/grpc_status.h"
#include "common/rpc/trace_carriers.h"

namespace winnow {
namespace {

absl::Status FromCall(const grpc::Status& status, std::string_view call) {
  return Annotate(FromGrpc(status), call);
}

}  // namespace

class ExchangeStream final : public grpc::ClientBidiReactor<v1::ExchangeRequest, v1::ExchangeResponse> {
 public:
  ExchangeStream(CacheLink* link, const v1::ExchangeRequest& request) : link_(link), request_(request) {}

  void Start(v1::TransportService::Stub& stub) {
    stub.async()->Exchange(&context_, this);
    StartWrite(&request_);
    StartRead(&response_);
    StartCall();
  }

  absl::StatusOr<v1::ExchangeResponse> AwaitAnswer(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const bool answered = changed_.wait_for(lock, timeout, [&] { return answered_ || done_; });
    if (answered_) return response_copy_;
    if (!answered) return absl::DeadlineExceededError("no answer to Exchange");
    if (status_.ok()) return absl::UnavailableError("Exchange ended without an answer");
    return FromCall(status_, "Exchange");
  }

  // Ends the call and waits until gRPC has let go of this object.
  void Stop() {
    context_.TryCancel();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    {
      std::lock_guard lock(mutex_);
      if (!answered_) response_copy_ = response_;
      answered_ = true;
    }
    changed_.notify_all();
    StartRead(&response_);  // stays pending until the stream ends
  }

  void OnDone(const grpc::Status& status) override {
    link_->MarkDead();
    std::lock_guard lock(mutex_);
    status_ = status;
    done_ = true;
    changed_.notify_all();
  }

 private:
  CacheLink* const link_;
  const v1::ExchangeRequest request_;
  grpc::ClientContext context_;
  v1::ExchangeResponse response_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool answered_ = false;
  bool done_ = false;
  v1::ExchangeResponse response_copy_;
  grpc::Status status_;
};

CacheLink::CacheLink(std::string address, std::shared_ptr<grpc::Channel> grpc_channel, std::function<void()> wake)
    : address_(std::move(address)),
      wake_(std::move(wake)),
      grpc_channel_(std::move(grpc_channel)),
      cache_stub_(v1::CacheService::NewStub(grpc_channel_)),
      transport_stub_(v1::TransportService::NewStub(grpc_channel_)) {}

CacheLink::~CacheLink() {
  if (exchange_ != nullptr) exchange_->Stop();
}

template <typename Response, typename Request>
absl::StatusOr<Response> CacheLink::Ask(grpc::Status (CacheStub::*method)(grpc::ClientContext*, const Request&,
                                                                          Response*),
                                        const Request& request, std::chrono::milliseconds timeout, const char* name,
                                        const TraceContext* trace) {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  if (trace != nullptr) SetTrace(context, *trace);
  {
    const std::lock_guard lock(calls_mutex_);
    if (!alive()) return absl::UnavailableError(absl::StrCat(name, ": the link to the cache rank has ended"));
    calls_.insert(&context);
  }
  Response response;
  const grpc::Status status = (static_cast<CacheStub&>(*cache_stub_).*method)(&context, request, &response);
  const bool has_answer = status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED &&
                          status.error_code() != grpc::StatusCode::UNAVAILABLE;
  bool ended = false;
  {
    const std::lock_guard lock(calls_mutex_);
    calls_.erase(&context);
    ended = status.error_code() == grpc::StatusCode::CANCELLED && !alive();
  }
  if (ended) return absl::UnavailableError(absl::StrCat(name, ": the link to the cache rank has ended"));
  if (has_answer) NoteHeard();
  WINNOW_RETURN_IF_ERROR(FromCall(status, name));
  return response;
}

bool CacheLink::TakeAwaited() {
  const std::lock_guard lock(calls_mutex_);
  return awaited_.exchange(false, std::memory_order_relaxed) || !calls_.empty();
}

void CacheLink::MarkDead() {
  {
    const std::lock_guard lock(calls_mutex_);
    if (!alive_.exchange(false, std::memory_order_acq_rel)) return;
    for (grpc::ClientContext* const call : calls_) call->TryCancel();
  }
  {
    const std::lock_guard lock(peer_link_mutex_);
    if (peer_link_ != nullptr) peer_link_->Abort(absl::UnavailableError("the link to the cache rank has ended"));
  }
  wake_();
}

void CacheLink::set_peer_link(std::unique_ptr<PeerStepLink> peer_link) {
  {
    const std::lock_guard lock(peer_link_mutex_);
    peer_link_.swap(peer_link);
  }
  if (peer_link_ == nullptr) return;
  if (!alive()) peer_link_->Abort(absl::UnavailableError("the link to the cache rank has ended"));
}

absl::StatusOr<std::string> CacheLink::Exchange(const v1::ExchangeRequest& request, std::chrono::milliseconds timeout) {
  exchange_ = std::make_unique<ExchangeStream>(this, request);
  exchange_->Start(*transport_stub_);
  absl::StatusOr<v1::ExchangeResponse> response = exchange_->AwaitAnswer(timeout);
  if (!response.ok()) return Annotate(response.status(), "cache rank at " + address_);
  channel_id_ = response->channel_id();
  peer_ = response->identity();
  peer_link_answer_ = response->peer_link();
  protection_ = response->protection();
  kernel_set_ = response->kernel_set();
  num_threads_ = static_cast<int>(response->num_threads());
  return response->worker_address();
}

absl::StatusOr<LinkProtection> CacheLink::protection() const {
  if (!v1::LinkProtection::Level_IsValid(protection_.level())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the cache rank answers with an unknown protection, ", static_cast<int>(protection_.level())));
  }
  LinkProtection protection{.level = static_cast<Protection>(protection_.level()), .key = {}};
  if (protection.level != Protection::kPlain) {
    WINNOW_ASSIGN_OR_RETURN(protection.key, SessionKey::FromBytes(protection_.session_key()));
  }
  return protection;
}

absl::StatusOr<v1::OpenSequenceResponse> CacheLink::Open(const v1::OpenSequenceRequest& request,
                                                         std::chrono::milliseconds timeout, const TraceContext* trace) {
  return Ask<v1::OpenSequenceResponse>(&CacheStub::OpenSequence, request, timeout, "OpenSequence", trace);
}

absl::StatusOr<v1::AttachSequenceResponse> CacheLink::Attach(const v1::AttachSequenceRequest& request,
                                                             std::chrono::milliseconds timeout,
                                                             const TraceContext* trace) {
  return Ask<v1::AttachSequenceResponse>(&CacheStub::AttachSequence, request, timeout, "AttachSequence", trace);
}

absl::StatusOr<v1::ForkSequenceResponse> CacheLink::Fork(const v1::ForkSequenceRequest& request,
                                                         std::chrono::milliseconds timeout, const TraceContext* trace) {
  return Ask<v1::ForkSequenceResponse>(&CacheStub::ForkSequence, request, timeout, "ForkSequence", trace);
}

absl::Status CacheLink::PushPrefix(const v1::PushPrefixRequest& request, std::chrono::milliseconds timeout) {
  return Ask<v1::PushPrefixResponse>(&CacheStub::PushPrefix, request, timeout, "PushPrefix").status();
}

}  // namespace winnow
