#include "inference_rank/service/resumable_answer.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "inference_rank/sequence/failed_event.h"

namespace winnow {
namespace {

// Of one message, which must stay below gRPC's limit of 4 MiB also with log probabilities and traces.
constexpr int kTokensPerMessage = 256;

}  // namespace

ResumableAnswer::ResumableAnswer(const v1::DispatchRequest::Submit& submit, std::shared_ptr<EventSink> stream)
    : sequence_request_id_(submit.request_id()),
      tenant_(submit.tenant()),
      stream_(std::move(stream)),
      request_id_(submit.request_id()) {
  place_.set_sequence_id(submit.sequence_id());
  *place_.mutable_cache_ranks() = submit.cache_ranks();
  place_.set_hand_over(submit.hand_over());
  for (const uint32_t id : submit.generated_token_ids()) tokens_.add_tokens()->set_id(id);
  bytes_ = tokens_.ByteSizeLong();
}

void ResumableAnswer::Send(v1::DispatchResponse event) {
  std::lock_guard lock(mutex_);
  Keep(event);
  Tell(std::move(event));
}

void ResumableAnswer::Keep(const v1::DispatchResponse& event) {
  bytes_ += event.ByteSizeLong();
  if (!event.has_tokens()) {
    last_ = event;
    failure_was_told_ = event.has_failed() && stream_ != nullptr;
    return;
  }
  tokens_.set_cached_prompt_tokens(event.tokens().cached_prompt_tokens());
  // Tokens that are known, as the source's of a fork may be, are not kept twice.
  const auto known = static_cast<int64_t>(tokens_.tokens_size()) - event.tokens().first_index();
  for (int64_t i = std::max<int64_t>(known, 0); i < event.tokens().tokens_size(); ++i) {
    *tokens_.add_tokens() = event.tokens().tokens(static_cast<int>(i));
  }
}

void ResumableAnswer::Tell(v1::DispatchResponse event) {
  if (stream_ == nullptr) return;
  event.set_request_id(request_id_);
  stream_->Send(std::move(event));
}

void ResumableAnswer::ResumeTo(std::shared_ptr<EventSink> stream, uint64_t request_id) {
  std::lock_guard lock(mutex_);
  Tell(FailedEvent(request_id_, absl::AbortedError("the answer was resumed by another call")));
  stream_ = std::move(stream);
  request_id_ = request_id;

  v1::DispatchResponse resumed;
  *resumed.mutable_resumed() = place_;
  Tell(std::move(resumed));
  for (int first = 0; first < tokens_.tokens_size(); first += kTokensPerMessage) {
    v1::DispatchResponse part;
    part.mutable_tokens()->set_first_index(first);
    part.mutable_tokens()->set_cached_prompt_tokens(tokens_.cached_prompt_tokens());
    const auto begin = tokens_.tokens().begin() + first;
    const int count = std::min(kTokensPerMessage, tokens_.tokens_size() - first);
    part.mutable_tokens()->mutable_tokens()->Assign(begin, begin + count);
    Tell(std::move(part));
  }
  if (!last_) return;
  failure_was_told_ = last_->has_failed();
  Tell(*last_);
}

bool ResumableAnswer::Detach(const EventSink* stream) {
  std::shared_ptr<EventSink> dropped;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  if (stream_ == nullptr || stream_.get() != stream) return false;
  dropped = std::move(stream_);
  return true;
}

bool ResumableAnswer::IsToldTo(const EventSink* stream) const {
  std::lock_guard lock(mutex_);
  return stream_ != nullptr && stream_.get() == stream;
}

bool ResumableAnswer::IsToldTo(const EventSink* stream, uint64_t request_id) const {
  std::lock_guard lock(mutex_);
  return stream_ != nullptr && stream_.get() == stream && request_id_ == request_id;
}

bool ResumableAnswer::is_detached() const {
  std::lock_guard lock(mutex_);
  return stream_ == nullptr;
}

bool ResumableAnswer::has_ended() const {
  std::lock_guard lock(mutex_);
  return last_ && (last_->has_finished() || last_->has_failed());
}

bool ResumableAnswer::is_handed_over() const {
  std::lock_guard lock(mutex_);
  return last_ && last_->has_handed_over();
}

bool ResumableAnswer::failure_was_told() const {
  std::lock_guard lock(mutex_);
  return failure_was_told_;
}

size_t ResumableAnswer::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace winnow
