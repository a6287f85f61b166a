
#include "common/base/json.h"
#include "tools/load/http_client.h"
#include "tools/load/load_client.h"

namespace winnow {
namespace {

using Json = nlohmann::json;

bool HasText(const Json& event) {
  for (const Json& choice : event.value("choices", Json::array())) {
    const auto text = choice.find("text");
    if (text != choice.end() && text->is_string() && !text->get_ref<const std::string&>().empty()) return true;
  }
  return false;
}

class HttpLoadClient final : public LoadClient {
 public:
  explicit HttpLoadClient(const LoadClientOptions& options)
      : options_(options), client_(options.address, std::chrono::minutes(30), options.api_key) {}

  void Run(const LoadRequest& request, const std::function<double()>& now_s, RequestTimes& times) override {
    Json body = {{"prompt", request.token_ids},
                 {"max_tokens", request.output_tokens},
                 {"temperature", 0},
                 {"ignore_eos", true},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}}};
    if (!options_.model.empty()) body["model"] = options_.model;
    if (!options_.selection.empty()) body["winnow"] = {{"selection", options_.selection}};
    // Events are only stamped while they come: parsing them would delay the next.
    std::vector<std::pair<double, std::string>> events;
    events.reserve(request.output_tokens + 4);
    times.sent_s = now_s();
    const auto on_event = [&](std::string_view data) {
      events.emplace_back(now_s(), data);
      return true;
    };
    const HttpReply reply = client_.Stream("/v1/completions", body, on_event, request.stop);
    times.end_s = now_s();
    times.prompt_tokens = static_cast<uint32_t>(request.token_ids.size());
    if (reply.status != 200) times.error = absl::StrCat("HTTP ", reply.status, ": ", reply.body.substr(0, 300));
    for (const auto& [time_s, data] : events) {
      const Json event = ParseJson(data);
      if (!event.is_object()) continue;  // [DONE]
      if (event.contains("error")) times.error = data.substr(0, 300);
      if (HasText(event)) times.token_s.push_back(time_s);
      if (event.contains("usage") && event["usage"].is_object()) ReadUsage(event["usage"], times);
    }
    if (times.error.empty() && times.token_s.empty()) times.error = "the answer has no tokens";
  }

 private:
  static void ReadUsage(const Json& usage, RequestTimes& times) {
    times.prompt_tokens = usage.value("prompt_tokens", times.prompt_tokens);
    times.output_tokens = usage.value("completion_tokens", times.output_tokens);
    const auto details = usage.find("prompt_tokens_details");
    if (details != usage.end() && details->is_object()) times.cached_tokens = details->value("cached_tokens", 0u);
  }

  const LoadClientOptions options_;
  const HttpClient client_;
};

}  // namespace

std::unique_ptr<LoadClient> NewHttpLoadClient(const LoadClientOptions& options) {
  return std::make_unique<HttpLoadClient>(options);
}

}  // namespace winnow
