#include <stop_token>

#include "clients/cpp/client.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "tools/load/load_client.h"

namespace winnow {
namespace {

class GrpcLoadClient final : public LoadClient {
 public:
  explicit GrpcLoadClient(const LoadClientOptions& options)
      : options_(options), client_(NewChannel(options.address), {.api_key = options.api_key}, options.address) {}

  void Run(const LoadRequest& request, const std::function<double()>& now_s, RequestTimes& times) override {
    v1::GenerateRequest message = TokensRequest(request.token_ids);
    message.set_max_tokens(request.output_tokens);
    message.set_ignore_eos(true);
    message.mutable_sampling()->set_temperature(0);
    if (!options_.model.empty()) message.set_model(options_.model);
    if (!options_.selection.empty()) message.mutable_selection()->set_specification(options_.selection);
    times.sent_s = now_s();
    AnswerStream answer = client_.Generate(message);
    const std::stop_callback cancel(request.stop, [&answer] { answer.Cancel(); });
    v1::GenerateResponse response;
    times.prompt_tokens = static_cast<uint32_t>(request.token_ids.size());
    while (answer.Read(response)) {
      if (response.has_delta()) {
        times.token_s.insert(times.token_s.end(), response.delta().tokens_size(), now_s());
      } else if (response.has_usage()) {
        times.prompt_tokens = response.usage().prompt_tokens();
        times.cached_tokens = response.usage().cached_prompt_tokens();
      }
    }
    const absl::Status status = answer.Finish();
    times.end_s = now_s();
    if (!status.ok()) {
      times.error = absl::StrCat("gRPC ", absl::StatusCodeToString(status.code()), ": ", status.message());
    }
    if (times.error.empty() && times.token_s.empty()) times.error = "the answer has no tokens";
  }

 private:
  const LoadClientOptions options_;
  const Client client_;
};

}  // namespace

std::unique_ptr<LoadClient> NewGrpcLoadClient(const LoadClientOptions& options) {
  return std::make_unique<GrpcLoadClient>(options);
}

}  // namespace winnow
