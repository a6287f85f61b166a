#include "cmd/chaos/load/requests.h"

#include <random>

#include "absl/strings/str_split.h"

namespace winnow::chaos {
namespace {

using Json = nlohmann::json;

Json Schema() {
  const Json text = {{"type", "string"}, {"maxLength", 24}};
  const Json number = {{"type", "integer"}, {"minimum", 0}, {"maximum", 99999}};
  const Json row = {{"type", "object"},
                    {"properties", {{"name", text}, {"count", number}}},
                    {"required", {"name", "count"}},
                    {"additionalProperties", false}};
  return {{"type", "object"},
          {"properties", {{"title", text}, {"rows", {{"type", "array"}, {"items", row}, {"minItems", 4}}}}},
          {"required", {"title", "rows"}},
          {"additionalProperties", false}};
}

void Sample(Json& body, std::mt19937_64& random) {
  body["temperature"] = 0.9;
  body["seed"] = random() % 1'000'000;
}

absl::Status AddKind(const std::string& kind, std::mt19937_64& random, Request& request) {
  if (kind == "greedy") return absl::OkStatus();
  if (kind == "seeded") {
    Sample(request.body, random);
    return absl::OkStatus();
  }
  if (kind == "samples") {
    Sample(request.body, random);
    request.samples = static_cast<int>(2 + random() % 3);
    request.body["n"] = request.samples;
    return absl::OkStatus();
  }
  if (kind == "structured") {
    request.body["response_format"] = {{"type", "json_schema"},
                                       {"json_schema", {{"name", "rows"}, {"strict", true}, {"schema", Schema()}}}};
    request.body.erase("ignore_eos");
    if (random() % 2 == 0) Sample(request.body, random);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--mix: \"", kind, "\" is none of greedy, seeded, samples, structured"));
}

}  // namespace

absl::StatusOr<std::vector<Request>> DrawRequests(const RequestOptions& options) {
  std::mt19937_64 random(options.seed);
  const std::vector<std::string> kinds = absl::StrSplit(options.mix, ',');
  std::vector<Request> requests(options.count);
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.kind = kinds[i % kinds.size()];
    request.prompt_tokens = options.prompt.Draw(random);
    std::vector<uint32_t> ids(request.prompt_tokens);
    for (uint32_t& id : ids) id = options.first_token_id + static_cast<uint32_t>(random() % options.token_ids);
    request.body = {{"prompt", ids},
                    {"max_tokens", options.answer.Draw(random)},
                    {"temperature", 0},
                    {"ignore_eos", true},
                    {"return_token_ids", true},
                    {"stream", true},
                    {"stream_options", {{"include_usage", true}}}};
    WINNOW_RETURN_IF_ERROR(AddKind(request.kind, random, request));
  }
  return requests;
}

}  // namespace winnow::chaos
