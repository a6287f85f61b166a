#pragma once
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tests/e2e/cluster.h"
#include "tests/e2e/completion.h"
#include "winnow/v1/generation.grpc.pb.h"

namespace winnow::e2e {

// One output of a call.
struct Output {
  TokenIds ids;
  uint32_t first_index = 0;  // of the first of ids
  std::string text;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  bool has_gaps = false;  // tokens came that do not follow those before
};

struct Answer {
  grpc::Status status;
  v1::GenerateResponse::Accepted accepted;
  std::map<uint32_t, Output> outputs;
  v1::GenerateResponse::Usage usage;

  const TokenIds& ids(uint32_t output = 0) const { return outputs.at(output).ids; }
};

// A stream of GenerationService, read message by message. Ends by itself after two minutes.
class Call {
 public:
  using Reader = std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>;
  explicit Call(const std::function<Reader(grpc::ClientContext*)>& start);

  // Reads until the output has that many tokens or the stream ends.
  bool ReadUntil(size_t tokens, uint32_t output = 0);
  const Answer& Finish();
  // As a client that goes away.
  void Cancel() { context_.TryCancel(); }
  const Answer& answer() const { return answer_; }
  bool WaitForAccepted() { return ReadOne(); }

 private:
  bool ReadOne();

  grpc::ClientContext context_;
  Reader reader_;
  Answer answer_;
};

class GenerationClient {
 public:
  explicit GenerationClient(const Cluster& cluster);
  explicit GenerationClient(const std::string& address);
  std::unique_ptr<Call> Generate(const v1::GenerateRequest& request);
  std::unique_ptr<Call> Resume(const v1::ResumeRequest& request);
  std::unique_ptr<Call> Fork(const v1::ForkRequest& request);

 private:
  const std::unique_ptr<v1::GenerationService::Stub> stub_;
};

// n samples of a prompt at temperature 1.2 from one seed, of exactly `tokens` tokens each. `selection`: empty: the
// cluster's.
v1::GenerateRequest SamplesOf(const std::string& selection, const TokenIds& prompt, uint32_t n, uint32_t tokens);

}  // namespace winnow::e2e
