#pragma once
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/rpc/admin_service.h"
#include "winnow/v1/rank.grpc.pb.h"

namespace winnow {

// An inference rank made of a script: a real gRPC server that records what it is told and sends what the test says.
class ScriptedRank {
 public:
  using Submit = v1::DispatchRequest::Submit;

  // `on_submit`, if there is one, is called for each Submit, from the server's threads.
  explicit ScriptedRank(std::string name, std::function<void(ScriptedRank&, const Submit&)> on_submit = nullptr);
  ~ScriptedRank();

  v1::Identity identity() const;
  // As a killed process: the socket closes.
  void Kill();

  // As the rank that has what is asked for, with its KV there.
  void SendResumed(uint64_t request_id, uint64_t sequence_id, const v1::Identity& cache_rank);
  void SendTokens(uint64_t request_id, uint32_t first_index, const std::vector<uint32_t>& ids);
  void SendPromptProgress(uint64_t request_id, uint32_t computed_tokens, uint32_t cached_tokens);
  // Tokens of the prompt with their log probabilities.
  void SendPromptTokens(uint64_t request_id, uint32_t first_index, const std::vector<uint32_t>& ids);
  void SendFinished(uint64_t request_id, v1::FinishReason reason = v1::FINISH_REASON_LENGTH);
  void SendHandedOver(uint64_t request_id);
  void SendFailed(uint64_t request_id, bool retryable, bool sequence_lost, uint32_t code = 14);

  // Waits until `count` Submits have come, and returns the last of these.
  Submit AwaitSubmit(size_t count);
  size_t submit_count() const;
  // The same of Resume, and of Leave.
  v1::DispatchRequest::Resume AwaitResume(size_t count);
  v1::DispatchRequest::Leave AwaitLeave(uint64_t request_id);
  void AwaitCancel(uint64_t request_id);
  // Waits until every request has been finished, failed or cancelled, or its stream has ended.
  void AwaitIdle();

 private:
  class Call;
  class Service;
  void Send(const v1::DispatchResponse& response);
  void OnRequest(const v1::DispatchRequest& request);

  const std::function<void(ScriptedRank&, const Submit&)> on_submit_;
  v1::Identity identity_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<AdminServiceImpl> admin_;
  std::unique_ptr<grpc::Server> server_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Submit> submits_;
  std::vector<v1::DispatchRequest::Resume> resumes_;
  std::map<uint64_t, v1::DispatchRequest::Leave> leaves_;
  std::set<uint64_t> cancels_;
  std::set<uint64_t> open_;
  std::shared_ptr<Call> call_;  // the newest
};

}  // namespace winnow
