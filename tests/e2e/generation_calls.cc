#include "tests/e2e/generation_calls.h"

#include <chrono>

namespace winnow::e2e {

Call::Call(const std::function<Reader(grpc::ClientContext*)>& start) {
  context_.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
  reader_ = start(&context_);
}

bool Call::ReadUntil(size_t tokens, uint32_t output) {
  while (answer_.outputs[output].ids.size() < tokens) {
    if (!ReadOne()) return false;
  }
  return true;
}

const Answer& Call::Finish() {
  while (ReadOne()) {
  }
  if (reader_ != nullptr) answer_.status = reader_->Finish();
  reader_ = nullptr;
  return answer_;
}

bool Call::ReadOne() {
  v1::GenerateResponse message;
  if (reader_ == nullptr || !reader_->Read(&message)) return false;
  if (message.has_accepted()) answer_.accepted = message.accepted();
  if (message.has_usage()) answer_.usage = message.usage();
  if (message.has_output_finished()) {
    answer_.outputs[message.output_finished().output_index()].reason = message.output_finished().reason();
  }
  if (message.has_delta()) {
    Output& output = answer_.outputs[message.delta().output_index()];
    if (output.ids.empty()) {
      output.first_index = message.delta().first_index();
    } else if (!message.delta().tokens().empty()) {
      output.has_gaps |= message.delta().first_index() != output.first_index + output.ids.size();
    }
    for (const v1::Token& token : message.delta().tokens()) output.ids.push_back(token.id());
    output.text += message.delta().text();
  }
  return true;
}

GenerationClient::GenerationClient(const Cluster& cluster) : GenerationClient(cluster.grpc_address()) {}

GenerationClient::GenerationClient(const std::string& address)
    : stub_(v1::GenerationService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {}

std::unique_ptr<Call> GenerationClient::Generate(const v1::GenerateRequest& request) {
  return std::make_unique<Call>([&](grpc::ClientContext* context) { return stub_->Generate(context, request); });
}

std::unique_ptr<Call> GenerationClient::Resume(const v1::ResumeRequest& request) {
  return std::make_unique<Call>([&](grpc::ClientContext* context) { return stub_->Resume(context, request); });
}

std::unique_ptr<Call> GenerationClient::Fork(const v1::ForkRequest& request) {
  return std::make_unique<Call>([&](grpc::ClientContext* context) { return stub_->Fork(context, request); });
}

v1::GenerateRequest SamplesOf(const std::string& selection, const TokenIds& prompt, uint32_t n, uint32_t tokens) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Assign(prompt.begin(), prompt.end());
  request.set_n(n);
  request.set_max_tokens(tokens);
  request.set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(1.2f);
  request.mutable_sampling()->set_seed(42);
  if (!selection.empty()) request.mutable_selection()->set_specification(selection);
  return request;
}

}  // namespace winnow::e2e
