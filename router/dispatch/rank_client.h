#pragma once
#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "common/base/status.h"
#include "winnow/v1/rank.grpc.pb.h"

namespace winnow {

// The router's one Dispatch stream to an inference rank, shared by all requests that run there. Thread-safe.
class RankClient {
 public:
  // What happens to a submitted request: its events, the last of which is Finished, Failed or HandedOver; or an error,
  // when the stream has ended, after which nothing comes: UNAVAILABLE when it broke, as when the rank's process ends,
  // and CANCELLED when it was closed here. Called from gRPC's threads, in order, without a lock; must be short. An
  // event that was under way when Cancel was called may still come.
  using Handler = std::function<void(absl::StatusOr<v1::DispatchResponse>)>;

  struct Options {
    // What may wait for the network; more is refused. A prompt of 128k ids takes about 400 KiB.
    size_t max_queued_bytes = size_t{64} << 20;
  };

  // Opens the stream. `on_lost` is called once, before the requests' handlers, when it has ended for another reason
  // than Close.
  // `released` is let go of when gRPC is done with the stream, which then holds no reference to the channel any more.
  RankClient(const std::shared_ptr<grpc::Channel>& channel, const v1::Identity& self, Options options,
             std::function<void(const absl::Status&)> on_lost, std::shared_ptr<void> released = nullptr);
  // As Close.
  ~RankClient();
  RankClient(const RankClient&) = delete;
  RankClient& operator=(const RankClient&) = delete;

  // UNAVAILABLE when the stream has ended or the outgoing queue is full; the handler is then not called.
  absl::Status Submit(v1::DispatchRequest::Submit submit, Handler handler);
  // Takes an output over, as Submit begins one; the first event is Resumed.
  absl::Status Resume(v1::DispatchRequest::Resume resume, Handler handler);
  // Tells the rank to drop a request, unless it has ended or was never sent.
  void Cancel(uint64_t request_id);
  // The same, but the rank is to keep it for a while for whoever resumes it, and goes on computing it unless `stop`.
  void Leave(uint64_t request_id, bool stop);
  // Tells the rank to drop the output of that key, if it has it; its answer is CANCELLED, or that the stream has ended.
  absl::Status Free(uint64_t request_id, const std::string& resume_key, const std::string& tenant, Handler handler);
  // Ends the stream: the rank cancels its requests, and their handlers get CANCELLED.
  void Close();

 private:
  class Stream;
  std::shared_ptr<Stream> stream_;
};

}  // namespace winnow
