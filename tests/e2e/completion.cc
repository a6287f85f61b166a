#include "tests/e2e/completion.h"

namespace winnow::e2e {
namespace {

constexpr char kPath[] = "/v1/completions";

void TakeChoice(const Json& choice, Completion* completion) {
  completion->text += choice.value("text", "");
  const auto ids = choice.find("token_ids");
  if (ids != choice.end() && ids->is_array()) {
    for (const Json& id : *ids) completion->ids.push_back(id.get<uint32_t>());
  }
  const auto reason = choice.find("finish_reason");
  if (reason != choice.end() && reason->is_string()) completion->finish_reason = *reason;
}

}  // namespace

double Completion::Stat(const char* name) const {
  if (!usage.is_object() || !usage.contains("winnow")) return -1;
  const Json value = usage["winnow"].value(name, Json());
  return value.is_number() ? value.get<double>() : -1;
}

Json GreedyRequest(const TokenIds& prompt, int max_tokens) {
  return {{"prompt", prompt},
          {"max_tokens", max_tokens},
          {"temperature", 0},
          {"ignore_eos", true},
          {"return_token_ids", true}};
}

Completion Complete(const HttpClient& client, const Json& request) {
  const HttpReply reply = client.Post(kPath, request);
  Completion completion;
  completion.status = reply.status;
  const Json answer = reply.json();
  if (reply.status != 200 || !answer.is_object()) {
    completion.error = reply.body;
    return completion;
  }
  completion.choice = answer.at("choices").at(0);
  completion.usage = answer.at("usage");
  TakeChoice(completion.choice, &completion);
  return completion;
}

Completion StreamCompletion(const HttpClient& client, Json request, const std::function<bool(size_t)>& on_token) {
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}};
  Completion completion;
  bool done = false, abandoned = false;
  const HttpReply reply = client.Stream(kPath, request, [&](std::string_view data) {
    if (data == "[DONE]") {
      done = true;
      return true;
    }
    const Json event = Json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object() || event.contains("error")) {
      completion.error = std::string(data);
      return true;
    }
    if (event.contains("usage") && event["usage"].is_object()) completion.usage = event["usage"];
    const size_t before = completion.ids.size();
    for (const Json& choice : event.at("choices")) TakeChoice(choice, &completion);
    if (on_token && completion.ids.size() > before) abandoned = !on_token(completion.ids.size());
    return !abandoned;
  });
  completion.status = reply.status;
  if (reply.status != 200) completion.error = reply.body;
  if (reply.status == 200 && !done && !abandoned && completion.error.empty()) {
    completion.error = "the stream ended without [DONE]";
  }
  return completion;
}

}  // namespace winnow::e2e
