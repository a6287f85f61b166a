#include <utility>

#include "router/openai/logprobs.h"
#include "router/openai/response_format.h"

namespace winnow {
namespace {

constexpr char kObject[] = "chat.completion";
constexpr char kChunkObject[] = "chat.completion.chunk";

class ChatFormat : public ResponseFormat {
 public:
  ChatFormat(ResponseIdentity identity, const TextCodec* codec) : identity_(std::move(identity)), codec_(*codec) {}

  std::string Whole(const std::vector<ChoiceResult>& choices, const UsageTotals& usage) const override {
    JsonWriter json;
    json.BeginObject();
    WriteResponseHead(identity_, kObject, &json);
    json.Key("choices").BeginArray();
    for (uint32_t i = 0; i < choices.size(); ++i) {
      const ChoiceResult& choice = choices[i];
      json.BeginObject();
      json.Key("index").Int(i);
      json.Key("message").BeginObject();
      json.Key("role").String("assistant").Key("content").String(choice.text).Key("refusal").Null();
      json.EndObject();
      WriteLogprobs(choice.tokens, &json);
      WriteFinish(choice.reason, choice.stop_match, &json);
      if (identity_.return_token_ids) WriteTokenIds(choice.tokens, &json);
      json.EndObject();
    }
    json.EndArray().Key("usage");
    usage.Write(&json);
    json.EndObject();
    return json.Take();
  }

  std::string FirstChunk(uint32_t choice) const override {
    JsonWriter json;
    OpenChunk(choice, &json);
    json.Key("role").String("assistant").Key("content").String("");
    CloseChunk({}, v1::FINISH_REASON_UNSPECIFIED, std::nullopt, &json);
    return json.Take();
  }

  std::string DeltaChunk(uint32_t choice, const TextDelta& delta, size_t*) const override {
    JsonWriter json;
    OpenChunk(choice, &json);
    json.Key("content").String(delta.text);
    CloseChunk(delta.tokens, v1::FINISH_REASON_UNSPECIFIED, std::nullopt, &json);
    return json.Take();
  }

  std::string EndChunk(uint32_t choice, v1::FinishReason reason,
                       const std::optional<std::string>& stop_match) const override {
    JsonWriter json;
    OpenChunk(choice, &json);
    CloseChunk({}, reason, stop_match, &json);
    return json.Take();
  }

  std::string UsageChunk(const UsageTotals& usage) const override {
    return FormatUsageChunk(identity_, kChunkObject, usage);
  }

 private:
  // Up to and into "delta".
  void OpenChunk(uint32_t choice, JsonWriter* json) const {
    json->BeginObject();
    WriteResponseHead(identity_, kChunkObject, json);
    json->Key("choices").BeginArray().BeginObject();
    json->Key("index").Int(choice);
    json->Key("delta").BeginObject();
  }

  void CloseChunk(const std::vector<v1::Token>& tokens, v1::FinishReason reason,
                  const std::optional<std::string>& stop_match, JsonWriter* json) const {
    json->EndObject();
    WriteLogprobs(tokens, json);
    WriteFinish(reason, stop_match, json);
    if (identity_.return_token_ids) WriteTokenIds(tokens, json);
    json->EndObject().EndArray();
    if (identity_.include_usage) json->Key("usage").Null();
    json->EndObject();
  }

  void WriteLogprobs(const std::vector<v1::Token>& tokens, JsonWriter* json) const {
    json->Key("logprobs");
    if (identity_.top_logprobs && !tokens.empty()) {
      WriteChatLogprobs(tokens, *identity_.top_logprobs, codec_, json);
    } else {
      json->Null();
    }
  }

  const ResponseIdentity identity_;
  const TextCodec& codec_;
};

}  // namespace

std::unique_ptr<ResponseFormat> MakeChatFormat(ResponseIdentity identity, const TextCodec* codec) {
  return std::make_unique<ChatFormat>(std::move(identity), codec);
}

}  // namespace winnow
