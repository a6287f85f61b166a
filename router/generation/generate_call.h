#pragma once
#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "router/generation/client_position.h"
#include "router/generation/generation.h"
#include "winnow/v1/generation.pb.h"

namespace winnow {

// One Generate call: queues what its generation says until gRPC has written it. Deltas that wait are merged; a client
// that reads too slowly for even that is cut off. It lives until gRPC is done with it.
class GenerateCall final : public grpc::ServerWriteReactor<v1::GenerateResponse>,
                           public GenerationObserver,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  // What may wait for the client, tokens and text.
  static constexpr size_t kMaxQueuedBytes = size_t{4} << 20;

  // Each is called once: `on_end` with the call's status, inside the lock; `on_gone` when gRPC is done with the call.
  GenerateCall(std::function<void(absl::StatusCode)> on_end, std::function<void()> on_gone)
      : on_end_(std::move(on_end)), on_gone_(std::move(on_gone)) {}

  // Exactly one of the three, once. `positions`: what the client has of an answer that is resumed, by output.
  void Begin(Generation* generation, GenerationInput input, std::vector<ClientPosition> positions = {});
  // Forks an output of the generation of `source`.
  void BeginFork(GenerateCall& source, const std::string& request_id, const ForkInput& input);
  void Refuse(const absl::Status& status);

  // Ends the call with this status and cancels the generation, also a resumable one. Any thread.
  void Stop(const absl::Status& status);

  void OnPromptProgress(const PromptProgress& progress) override;
  void OnDelta(const TextDelta& delta) override;
  void OnOutputEnd(const OutputEnd& end) override;
  void OnDone(const GenerationUsage& usage) override;
  void OnFailed(const absl::Status& status) override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  struct Queued {
    v1::GenerateResponse message;
    size_t bytes = 0;
  };

  absl::StatusOr<GenerationFork> Fork(const ForkInput& input, GenerationObserver* observer);
  // The client has gone: its generation is cancelled, or left to whoever resumes it.
  void Leave();
  void Launch(v1::GenerateResponse accepted, absl::StatusOr<std::unique_ptr<GenerationHandle>> handle);
  void Enqueue(v1::GenerateResponse message);  // mutex_ held
  void Advance();                              // mutex_ held: writes or finishes, if that is due
  void EndWith(const absl::Status& status);    // mutex_ held: drops what is queued

  const std::function<void(absl::StatusCode)> on_end_;
  const std::function<void()> on_gone_;
  std::shared_ptr<GenerateCall> me_;  // set before the first operation, until OnDone

  std::mutex mutex_;
  std::unique_ptr<GenerationHandle> handle_;  // destroyed without the lock
  bool held_ = true;                          // nothing goes out before Start has succeeded
  bool writing_ = false;
  bool finished_ = false;
  std::optional<absl::Status> end_;  // once the queue is empty
  std::deque<Queued> queue_;
  size_t queued_bytes_ = 0;
  std::vector<ClientPosition> positions_;
  v1::GenerateResponse response_;  // unchanged while writing_
};

}  // namespace winnow
