#include "tests/router/dispatch/scripted_rank.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <deque>

#include "common/base/check.h"

namespace winnow {
namespace {

constexpr std::chrono::seconds kPatience{60};

}  // namespace

class ScriptedRank::Call final : public grpc::ServerBidiReactor<v1::DispatchRequest, v1::DispatchResponse> {
 public:
  explicit Call(ScriptedRank* rank) : rank_(rank) {}

  void Open(std::shared_ptr<Call> me) {
    me_ = std::move(me);
    StartRead(&request_);
  }
  void Send(const v1::DispatchResponse& response) {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    queue_.push_back(response);
    WriteNext();
  }
  void OnReadDone(bool ok) override {
    if (!ok) {
      std::lock_guard lock(mutex_);
      if (std::exchange(ended_, true)) return;
      queue_.clear();
      Finish(grpc::Status::OK);
      return;
    }
    rank_->OnRequest(request_);
    StartRead(&request_);
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ended_ && ok) WriteNext();
  }
  void OnDone() override {
    {
      std::lock_guard lock(rank_->mutex_);
      if (rank_->call_.get() == this) {
        rank_->call_.reset();
        rank_->open_.clear();
      }
      rank_->changed_.notify_all();
    }
    me_.reset();
  }

 private:
  void WriteNext() {
    if (writing_ || queue_.empty()) return;
    response_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    StartWrite(&response_);
  }

  ScriptedRank* const rank_;
  std::shared_ptr<Call> me_;
  v1::DispatchRequest request_;
  std::mutex mutex_;
  bool ended_ = false;
  bool writing_ = false;
  std::deque<v1::DispatchResponse> queue_;
  v1::DispatchResponse response_;
};

class ScriptedRank::Service final : public v1::RankService::CallbackService {
 public:
  explicit Service(ScriptedRank* rank) : rank_(rank) {}
  grpc::ServerBidiReactor<v1::DispatchRequest, v1::DispatchResponse>* Dispatch(grpc::CallbackServerContext*) override {
    auto call = std::make_shared<Call>(rank_);
    {
      std::lock_guard lock(rank_->mutex_);
      rank_->call_ = call;
    }
    Call* raw = call.get();
    raw->Open(std::move(call));
    return raw;
  }

 private:
  ScriptedRank* const rank_;
};

ScriptedRank::ScriptedRank(std::string name, std::function<void(ScriptedRank&, const Submit&)> on_submit)
    : on_submit_(std::move(on_submit)), service_(std::make_unique<Service>(this)) {
  static std::atomic<uint64_t> next_incarnation{1000};
  identity_.set_cluster("test");
  identity_.set_role(v1::ROLE_INFERENCE_RANK);
  identity_.set_rank(std::move(name));
  identity_.set_incarnation(next_incarnation++);
  v1::GetServerInfoResponse info;
  *info.mutable_identity() = identity_;
  admin_ = std::make_unique<AdminServiceImpl>(std::move(info), [] { return v1::RankLoad(); });
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service_.get());
  builder.RegisterService(admin_.get());
  server_ = builder.BuildAndStart();
  WINNOW_CHECK(server_ != nullptr);
  identity_.set_address("127.0.0.1:" + std::to_string(port));
}

ScriptedRank::~ScriptedRank() {
  Kill();
}

v1::Identity ScriptedRank::identity() const {
  return identity_;
}

void ScriptedRank::Kill() {
  if (!server_) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

void ScriptedRank::OnRequest(const v1::DispatchRequest& request) {
  {
    std::lock_guard lock(mutex_);
    if (request.has_submit()) {
      submits_.push_back(request.submit());
      open_.insert(request.submit().request_id());
    }
    if (request.has_resume()) {
      resumes_.push_back(request.resume());
      open_.insert(request.resume().request_id());
    }
    if (request.has_leave()) {
      leaves_[request.leave().request_id()] = request.leave();
      open_.erase(request.leave().request_id());
    }
    if (request.has_cancel()) {
      cancels_.insert(request.cancel().request_id());
      open_.erase(request.cancel().request_id());
    }
    changed_.notify_all();
  }
  if (request.has_submit() && on_submit_) on_submit_(*this, request.submit());
}

void ScriptedRank::Send(const v1::DispatchResponse& response) {
  std::shared_ptr<Call> call;
  {
    std::lock_guard lock(mutex_);
    call = call_;
    if (!response.has_tokens() && !response.has_resumed()) open_.erase(response.request_id());
    changed_.notify_all();
  }
  if (call) call->Send(response);
}

void ScriptedRank::SendResumed(uint64_t request_id, uint64_t sequence_id, const v1::Identity& cache_rank) {
  v1::DispatchResponse response;
  response.set_request_id(request_id);
  response.mutable_resumed()->set_sequence_id(sequence_id);
  *response.mutable_resumed()->add_cache_ranks() = cache_rank;
  Send(response);
}

void ScriptedRank::SendTokens(uint64_t request_id, uint32_t first_index, const std::vector<uint32_t>& ids) {
  v1::DispatchResponse response;
  response.set_request_id(request_id);
  response.mutable_tokens()->set_first_index(first_index);
  for (const uint32_t id : ids) response.mutable_tokens()->add_tokens()->set_id(id);
  Send(response);
}

void ScriptedRank::SendPromptProgress(uint64_t request_id, uint32_t computed_tokens, uint32_t cached_tokens) {
  v1::DispatchResponse response;
  response.set_request_id(request_id);
  response.mutable_prompt_progress()->set_computed_tokens(computed_tokens);
  response.mutable_prompt_progress()->set_cached_tokens(cached_tokens);
  Send(response);
}

void ScriptedRank::SendPromptTokens(uint64_t request_id, uint32_t first_index, const std::vector<uint32_t>& ids) {
  v1::DispatchResponse response;
  response.set_request_id(request_id);
  response.mutable_prompt_tokens()->set_first_index(first_index);
  for (const uint32_t id : ids) response.mutable_prompt_tokens()->add_tokens()->set_id(id);
  Send(response);
}

void ScriptedRank::SendFinished(uint64_t request_id, v1::FinishReason reason) {
  v1::DispatchResponse response;
  response.set_request_id(request_id);
  response.mutable_finished()->set_reason(reason);
  Send(response);
}

void ScriptedRank::SendHandedOver(uint64_t request_id) {
  v1::DispatchResponse response;
  response.set_request_id(request_id);
  response.mutable_handed_over();
  Send(response);
}

void ScriptedRank::SendFailed(uint64_t request_id, bool retryable, bool sequence_lost, uint32_t code) {
  v1::DispatchResponse response;
  response.set_request_id(request_id);
  response.mutable_failed()->set_code(code);
  response.mutable_failed()->set_message("scripted failure");
  response.mutable_failed()->set_retryable(retryable);
  response.mutable_failed()->set_sequence_lost(sequence_lost);
  Send(response);
}

ScriptedRank::Submit ScriptedRank::AwaitSubmit(size_t count) {
  std::unique_lock lock(mutex_);
  WINNOW_CHECK(changed_.wait_for(lock, kPatience, [&] { return submits_.size() >= count; }));
  return submits_[count - 1];
}

v1::DispatchRequest::Resume ScriptedRank::AwaitResume(size_t count) {
  std::unique_lock lock(mutex_);
  WINNOW_CHECK(changed_.wait_for(lock, kPatience, [&] { return resumes_.size() >= count; }));
  return resumes_[count - 1];
}

v1::DispatchRequest::Leave ScriptedRank::AwaitLeave(uint64_t request_id) {
  std::unique_lock lock(mutex_);
  WINNOW_CHECK(changed_.wait_for(lock, kPatience, [&] { return leaves_.contains(request_id); }));
  return leaves_.at(request_id);
}

size_t ScriptedRank::submit_count() const {
  std::lock_guard lock(mutex_);
  return submits_.size();
}

void ScriptedRank::AwaitCancel(uint64_t request_id) {
  std::unique_lock lock(mutex_);
  WINNOW_CHECK(changed_.wait_for(lock, kPatience, [&] { return cancels_.contains(request_id); }));
}

void ScriptedRank::AwaitIdle() {
  std::unique_lock lock(mutex_);
  WINNOW_CHECK(changed_.wait_for(lock, kPatience, [&] { return open_.empty(); }));
}

}  // namespace winnow
