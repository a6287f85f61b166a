#include <utility>

#include "router/openai/logprobs.h"
#include "router/openai/response_format.h"

namespace winnow {
namespace {

constexpr char kObject[] = "text_completion";

class CompletionFormat : public ResponseFormat {
 public:
  CompletionFormat(ResponseIdentity identity, const TextCodec* codec)
      : identity_(std::move(identity)), codec_(*codec) {}

  std::string Whole(const std::vector<ChoiceResult>& choices, const UsageTotals& usage) const override {
    JsonWriter json;
    json.BeginObject();
    WriteResponseHead(identity_, kObject, &json);
    json.Key("choices").BeginArray();
    for (uint32_t i = 0; i < choices.size(); ++i) {
      size_t text_offset = 0;
      WriteChoice(i, choices[i].text, choices[i].tokens, choices[i].reason, choices[i].stop_match, &text_offset, &json);
    }
    json.EndArray().Key("usage");
    usage.Write(&json);
    json.EndObject();
    return json.Take();
  }

  std::string FirstChunk(uint32_t) const override { return {}; }

  std::string DeltaChunk(uint32_t choice, const TextDelta& delta, size_t* text_offset) const override {
    return Chunk(choice, delta.text, delta.tokens, v1::FINISH_REASON_UNSPECIFIED, std::nullopt, text_offset);
  }

  std::string EndChunk(uint32_t choice, v1::FinishReason reason,
                       const std::optional<std::string>& stop_match) const override {
    size_t unused = 0;
    return Chunk(choice, "", {}, reason, stop_match, &unused);
  }

  std::string UsageChunk(const UsageTotals& usage) const override {
    return FormatUsageChunk(identity_, kObject, usage);
  }

 private:
  std::string Chunk(uint32_t choice, const std::string& text, const std::vector<v1::Token>& tokens,
                    v1::FinishReason reason, const std::optional<std::string>& stop_match, size_t* text_offset) const {
    JsonWriter json;
    json.BeginObject();
    WriteResponseHead(identity_, kObject, &json);
    json.Key("choices").BeginArray();
    WriteChoice(choice, text, tokens, reason, stop_match, text_offset, &json);
    json.EndArray();
    if (identity_.include_usage) json.Key("usage").Null();
    json.EndObject();
    return json.Take();
  }

  void WriteChoice(uint32_t index, const std::string& text, const std::vector<v1::Token>& tokens,
                   v1::FinishReason reason, const std::optional<std::string>& stop_match, size_t* text_offset,
                   JsonWriter* json) const {
    json->BeginObject();
    json->Key("index").Int(index);
    json->Key("text").String(text);
    json->Key("logprobs");
    if (identity_.top_logprobs && !tokens.empty()) {
      WriteCompletionLogprobs(tokens, *identity_.top_logprobs, codec_, text_offset, json);
    } else {
      json->Null();
    }
    WriteFinish(reason, stop_match, json);
    if (identity_.return_token_ids) WriteTokenIds(tokens, json);
    json->EndObject();
  }

  const ResponseIdentity identity_;
  const TextCodec& codec_;
};

}  // namespace

std::unique_ptr<ResponseFormat> MakeCompletionFormat(ResponseIdentity identity, const TextCodec* codec) {
  return std::make_unique<CompletionFormat>(std::move(identity), codec);
}

}  // namespace winnow
