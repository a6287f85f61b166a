#include <utility>

#include "router/openai/logprobs.h"
#include "router/openai/response_format.h"
#include "router/openai/trace_json.h"

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
      WriteChoice(i, choices[i].message.content, choices[i].tokens, choices[i].end, &text_offset, &json);
    }
    json.EndArray().Key("usage");
    usage.Write(&json);
    json.EndObject();
    return json.Take();
  }

  std::string FirstChunk(uint32_t, const std::optional<ChunkUsage>&) const override { return {}; }

  std::string DeltaChunk(uint32_t choice, const ChoiceDelta& delta, const std::optional<ChunkUsage>& usage,
                         size_t* text_offset) const override {
    return Chunk(choice, delta, {}, usage, text_offset);
  }

  std::string EndChunk(uint32_t choice, const ChoiceEnd& end, const std::optional<ChunkUsage>& usage) const override {
    size_t unused = 0;
    return Chunk(choice, {}, end, usage, &unused);
  }

  std::string PromptChunk(uint32_t prompt_index, const PromptProgress& progress) const override {
    return FormatPromptChunk(identity_, kObject, prompt_index, progress);
  }

  std::string UsageChunk(const UsageTotals& usage) const override {
    return FormatUsageChunk(identity_, kObject, usage);
  }

 private:
  std::string Chunk(uint32_t choice, const ChoiceDelta& delta, const ChoiceEnd& end,
                    const std::optional<ChunkUsage>& usage, size_t* text_offset) const {
    JsonWriter json;
    json.BeginObject();
    WriteResponseHead(identity_, kObject, &json);
    json.Key("choices").BeginArray();
    WriteChoice(choice, delta.message.content, delta.tokens, end, text_offset, &json);
    json.EndArray();
    WriteChunkUsage(identity_, usage, &json);
    json.EndObject();
    return json.Take();
  }

  void WriteChoice(uint32_t index, const std::string& text, const std::vector<v1::Token>& tokens, const ChoiceEnd& end,
                   size_t* text_offset, JsonWriter* json) const {
    json->BeginObject();
    json->Key("index").Int(index);
    json->Key("text").String(text);
    json->Key("logprobs");
    if (identity_.top_logprobs && !tokens.empty()) {
      WriteCompletionLogprobs(tokens, {*identity_.top_logprobs, identity_.tokens_as_ids}, codec_, text_offset, json);
    } else {
      json->Null();
    }
    WriteFinish(end, json);
    if (identity_.return_token_ids) WriteTokenIds(tokens, json);
    WriteTraces(tokens, json);
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
