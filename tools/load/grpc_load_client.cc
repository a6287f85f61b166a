#include <grpcpp/grpcpp.h>

#include "tools/load/load_client.h"
#include "winnow/v1/generation.grpc.pb.h"

namespace winnow {
namespace {

class GrpcLoadClient final : public LoadClient {
 public:
  explicit GrpcLoadClient(const LoadClientOptions& options)
      : options_(options),
        stub_(
            v1::GenerationService::NewStub(grpc::CreateChannel(options.address, grpc::InsecureChannelCredentials()))) {}

  void Run(const LoadRequest& request, const std::function<double()>& now_s, RequestTimes& times) override {
    v1::GenerateRequest message;
    message.mutable_token_ids()->mutable_ids()->Add(request.token_ids.begin(), request.token_ids.end());
    message.set_max_tokens(request.output_tokens);
    message.set_ignore_eos(true);
    message.mutable_sampling()->set_temperature(0);
    if (!options_.model.empty()) message.set_model(options_.model);
    if (!options_.selection.empty()) message.mutable_selection()->set_specification(options_.selection);
    grpc::ClientContext context;
    if (!options_.api_key.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", options_.api_key));
    const std::stop_callback cancel(request.stop, [&context] { context.TryCancel(); });
    times.sent_s = now_s();
    const std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader = stub_->Generate(&context, message);
    v1::GenerateResponse response;
    times.prompt_tokens = static_cast<uint32_t>(request.token_ids.size());
    while (reader->Read(&response)) {
      if (response.has_delta()) {
        times.token_s.insert(times.token_s.end(), response.delta().tokens_size(), now_s());
      } else if (response.has_usage()) {
        times.prompt_tokens = response.usage().prompt_tokens();
        times.cached_tokens = response.usage().cached_prompt_tokens();
      }
    }
    const grpc::Status status = reader->Finish();
    times.end_s = now_s();
    if (!status.ok()) times.error = absl::StrCat("gRPC ", status.error_code(), ": ", status.error_message());
    if (times.error.empty() && times.token_s.empty()) times.error = "the answer has no tokens";
  }

 private:
  const LoadClientOptions options_;
  const std::unique_ptr<v1::GenerationService::Stub> stub_;
};

}  // namespace

std::unique_ptr<LoadClient> NewGrpcLoadClient(const LoadClientOptions& options) {
  return std::make_unique<GrpcLoadClient>(options);
}

}  // namespace winnow
