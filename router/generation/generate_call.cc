#include "router/generation/generate_call.h"

#include <algorithm>

#include "common/selection/spec_text.h"
#include "router/generation/grpc_error.h"

namespace winnow {

void GenerateCall::Begin(Generation* generation, GenerationInput input, std::vector<ClientPosition> positions) {
  const auto self = me_ = shared_from_this();
  positions_ = std::move(positions);
  v1::GenerateResponse accepted;
  accepted.mutable_accepted()->set_request_id(input.request_id);
  accepted.mutable_accepted()->set_prompt_tokens(static_cast<uint32_t>(input.prompt_token_ids.size()));
  accepted.mutable_accepted()->set_selection(SpecText(input.selection));
  Launch(std::move(accepted), generation->Start(std::move(input), this));
}

void GenerateCall::BeginFork(GenerateCall& source, const std::string& request_id, const ForkInput& input) {
  const auto self = me_ = shared_from_this();
  absl::StatusOr<GenerationFork> fork = source.Fork(input, this);
  v1::GenerateResponse accepted;
  accepted.mutable_accepted()->set_request_id(request_id);
  if (!fork.ok()) return Launch(std::move(accepted), fork.status());
  accepted.mutable_accepted()->set_prompt_tokens(fork->prompt_tokens);
  accepted.mutable_accepted()->set_selection(SpecText(fork->selection));
  accepted.mutable_accepted()->set_forked_tokens(fork->forked_tokens);
  Launch(std::move(accepted), std::move(fork->handle));
}

absl::StatusOr<GenerationFork> GenerateCall::Fork(const ForkInput& input, GenerationObserver* observer) {
  std::lock_guard lock(mutex_);
  if (handle_ == nullptr) return absl::NotFoundError("source_request_id: the request is over");
  return handle_->Fork(input, observer);
}

void GenerateCall::Launch(v1::GenerateResponse accepted, absl::StatusOr<std::unique_ptr<GenerationHandle>> handle) {
  std::unique_ptr<GenerationHandle> dropped;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  held_ = false;
  if (!handle.ok()) {
    EndWith(handle.status());
    return Advance();
  }
  accepted.mutable_accepted()->set_resume_token((*handle)->resume_token());
  queue_.push_front({std::move(accepted), 0});
  // The client may have gone, or the generation may have ended, while it was started.
  (finished_ || end_ ? dropped : handle_) = *std::move(handle);
  Advance();
}

void GenerateCall::Refuse(const absl::Status& status) {
  const auto self = me_ = shared_from_this();
  std::lock_guard lock(mutex_);
  held_ = false;
  EndWith(status);
  Advance();
}

void GenerateCall::Stop(const absl::Status& status) {
  const auto self = shared_from_this();
  std::unique_ptr<GenerationHandle> dropped;
  std::lock_guard lock(mutex_);
  dropped = std::move(handle_);
  EndWith(status);
  Advance();
}

void GenerateCall::OnPromptProgress(const PromptProgress& progress) {
  const auto self = shared_from_this();
  std::lock_guard lock(mutex_);
  if (end_) return;
  // Of what waits for a slow client the newest is enough.
  std::erase_if(queue_, [](const Queued& queued) { return queued.message.has_prompt_progress(); });
  v1::GenerateResponse message;
  message.mutable_prompt_progress()->set_computed_tokens(progress.computed_tokens);
  message.mutable_prompt_progress()->set_cached_tokens(progress.cached_tokens);
  message.mutable_prompt_progress()->set_prompt_tokens(progress.prompt_tokens);
  queue_.push_back({std::move(message), 0});
  Advance();
}

void GenerateCall::Leave() {
  const auto self = shared_from_this();
  std::unique_ptr<GenerationHandle> dropped;
  std::lock_guard lock(mutex_);
  dropped = std::move(handle_);
  if (dropped) dropped->Leave();
  EndWith(absl::CancelledError("the client has gone"));
  Advance();
}

void GenerateCall::OnDelta(const TextDelta& said) {
  TextDelta delta = said;
  const auto self = shared_from_this();
  std::unique_ptr<GenerationHandle> dropped;
  std::lock_guard lock(mutex_);
  if (end_) return;
  if (delta.output_index < positions_.size() && !positions_[delta.output_index].Trim(&delta)) return;
  v1::GenerateResponse message;
  v1::GenerateResponse::Delta* out = message.mutable_delta();
  out->set_output_index(delta.output_index);
  out->set_first_index(delta.first_index);
  out->mutable_tokens()->Assign(delta.tokens.begin(), delta.tokens.end());
  out->set_text(delta.text);
  Enqueue(std::move(message));
  if (queued_bytes_ > kMaxQueuedBytes) {
    dropped = std::move(handle_);
    if (dropped) dropped->Leave();
    EndWith(absl::ResourceExhaustedError("the client reads too slowly"));
  }
  Advance();
}

void GenerateCall::OnOutputEnd(const OutputEnd& end) {
  const auto self = shared_from_this();
  std::lock_guard lock(mutex_);
  if (end_) return;
  v1::GenerateResponse message;
  v1::GenerateResponse::OutputFinished* out = message.mutable_output_finished();
  out->set_output_index(end.output_index);
  out->set_reason(end.reason);
  if (end.stop_match) out->set_stop_match(*end.stop_match);
  if (end.stats) *out->mutable_selection() = *end.stats;
  Enqueue(std::move(message));
  Advance();
}

void GenerateCall::OnDone(const GenerationUsage& usage) {
  const auto self = shared_from_this();
  std::lock_guard lock(mutex_);
  if (end_) return;
  v1::GenerateResponse message;
  message.mutable_usage()->set_prompt_tokens(usage.prompt_tokens);
  message.mutable_usage()->set_completion_tokens(usage.completion_tokens);
  message.mutable_usage()->set_cached_prompt_tokens(usage.cached_prompt_tokens);
  Enqueue(std::move(message));
  end_ = absl::OkStatus();
  Advance();
}

void GenerateCall::OnFailed(const absl::Status& status) {
  const auto self = shared_from_this();
  std::lock_guard lock(mutex_);
  if (!end_) end_ = status;  // after what is queued
  Advance();
}

void GenerateCall::OnWriteDone(bool ok) {
  const auto self = shared_from_this();
  std::unique_ptr<GenerationHandle> dropped;
  std::lock_guard lock(mutex_);
  writing_ = false;
  if (!ok) {
    dropped = std::move(handle_);
    if (dropped) dropped->Leave();
    EndWith(absl::CancelledError("the client has gone"));
  }
  Advance();
}

void GenerateCall::OnCancel() {
  Leave();
}

void GenerateCall::OnDone() {
  std::unique_ptr<GenerationHandle> dropped;
  {
    std::lock_guard lock(mutex_);
    dropped = std::move(handle_);
  }
  if (dropped) dropped->Leave();
  dropped.reset();
  on_gone_();
  me_.reset();
}

void GenerateCall::Enqueue(v1::GenerateResponse message) {
  const size_t bytes = message.ByteSizeLong();
  queued_bytes_ += bytes;
  if (message.has_delta()) {
    const auto waiting = std::find_if(queue_.rbegin(), queue_.rend(), [&](const Queued& queued) {
      return queued.message.has_delta() && queued.message.delta().output_index() == message.delta().output_index();
    });
    if (waiting != queue_.rend()) {
      v1::GenerateResponse::Delta* delta = waiting->message.mutable_delta();
      delta->mutable_tokens()->MergeFrom(message.delta().tokens());
      delta->mutable_text()->append(message.delta().text());
      waiting->bytes += bytes;
      return;
    }
  }
  queue_.push_back({std::move(message), bytes});
}

void GenerateCall::EndWith(const absl::Status& status) {
  if (finished_) return;
  end_ = status;
  queue_.clear();
  queued_bytes_ = 0;
}

void GenerateCall::Advance() {
  if (held_ || writing_ || finished_) return;
  if (!queue_.empty()) {
    response_ = std::move(queue_.front().message);
    queued_bytes_ -= queue_.front().bytes;
    queue_.pop_front();
    writing_ = true;
    StartWrite(&response_);
  } else if (end_) {
    finished_ = true;
    on_end_(end_->code());
    Finish(ToRichGrpc(*end_));
  }
}

}  // namespace winnow
