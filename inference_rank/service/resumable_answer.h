#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "inference_rank/sequence/event_sink.h"

namespace winnow {

// What has been told of one output, kept so that it can be told again, beside the stream that it is told to now. It is
// the sink of the output's sequence and may outlive the stream that the sequence came on. Thread-safe.
class ResumableAnswer final : public EventSink {
 public:
  // Events go to `stream` until another one takes over.
  ResumableAnswer(const v1::DispatchRequest::Submit& submit, std::shared_ptr<EventSink> stream);

  void Send(v1::DispatchResponse event) override;

  // From now on events go to `stream` under `request_id`: Resumed and all that was told, then what comes. Whoever
  // listened until now is told that it has ended.
  void ResumeTo(std::shared_ptr<EventSink> stream, uint64_t request_id);
  // Nobody listens any more. False when it was not this stream that did.
  bool Detach(const EventSink* stream);
  bool IsToldTo(const EventSink* stream) const;
  bool IsToldTo(const EventSink* stream, uint64_t request_id) const;
  bool is_detached() const;

  // The last event has come.
  bool has_ended() const;
  // It waits for another rank to attach, perhaps for another attempt here.
  bool is_handed_over() const;
  // It has failed, and who listened knows.
  bool failure_was_told() const;
  // Of what is kept.
  size_t bytes() const;

  // Of the sequence, whatever the stream calls it.
  uint64_t sequence_request_id() const { return sequence_request_id_; }
  const std::string& tenant() const { return tenant_; }

 private:
  void Keep(const v1::DispatchResponse& event);  // mutex_ held
  void Tell(v1::DispatchResponse event);         // mutex_ held

  const uint64_t sequence_request_id_;
  const std::string tenant_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<EventSink> stream_;  // null: nobody listens
  uint64_t request_id_;                // on the stream
  v1::DispatchResponse::Resumed place_;
  v1::DispatchResponse::TokenDelta tokens_;   // all of them, from index 0 on
  std::optional<v1::DispatchResponse> last_;  // the newest event that brought none
  size_t bytes_ = 0;
  bool failure_was_told_ = false;
};

}  // namespace winnow
