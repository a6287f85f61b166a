#include <utility>

#include "router/openai/response/logprobs.h"
#include "router/openai/response/response_format.h"
#include "router/openai/response/trace_json.h"

namespace winnow {
namespace {

constexpr char kCompletionObject[] = "text_completion";

class CompletionFormat : public ResponseFormat {
 public:
  CompletionFormat(ResponseIdentity identity, const TextCodec* codec)
      : identity_(std::move(identity)), codec_(*codec) {}

  std::string Whole(const std::vector<ChoiceResult>& choices, const UsageTotals& usage) override {
    JsonWriter json;
    json.BeginObject();
    WriteResponseHead(identity_, kCompletionObject, &json);
    json.Key("choices").BeginArray();
    for (uint32_t i = 0; i < choices.size(); ++i) {
      size_t text_offset = 0;
      WriteChoice(i, {choices[i].prompt_tokens, choices[i].message, choices[i].tokens}, choices[i].end, &text_offset,
                  &json);
    }
    json.EndArray().Key("usage");
    usage.Write(&json);
    json.EndObject();
    return json.Take();
  }

  StreamEvents DeltaChunk(uint32_t choice, const ChoiceDelta& delta, const std::optional<ChunkUsage>& usage,
                          size_t* text_offset) override {
    return Chunk(choice, delta, {}, usage, text_offset);
  }

  StreamEvents EndChunk(uint32_t choice, const ChoiceEnd& end, const std::optional<ChunkUsage>& usage) override {
    size_t unused = 0;
    return Chunk(choice, {}, end, usage, &unused);
  }

  StreamEvents PromptChunk(uint32_t prompt_index, const PromptProgress& progress) override {
    return FormatPromptChunk(identity_, kCompletionObject, prompt_index, progress);
  }

  StreamEvents End(const UsageTotals& usage) override { return FormatStreamEnd(identity_, kCompletionObject, usage); }

 private:
  StreamEvents Chunk(uint32_t choice, const ChoiceDelta& delta, const ChoiceEnd& end,
                     const std::optional<ChunkUsage>& usage, size_t* text_offset) const {
    JsonWriter json;
    json.BeginObject();
    WriteResponseHead(identity_, kCompletionObject, &json);
    json.Key("choices").BeginArray();
    WriteChoice(choice, delta, end, text_offset, &json);
    json.EndArray();
    WriteChunkUsage(identity_, usage, &json);
    json.EndObject();
    return {{.data = json.Take()}};
  }

  void WriteChoice(uint32_t index, const ChoiceDelta& said, const ChoiceEnd& end, size_t* text_offset,
                   JsonWriter* json) const {
    json->BeginObject();
    json->Key("index").Int(index);
    json->Key("text").String(said.message.content);
    std::vector<v1::Token> tokens = identity_.echoes_logprobs ? said.prompt_tokens : std::vector<v1::Token>();
    tokens.insert(tokens.end(), said.tokens.begin(), said.tokens.end());
    json->Key("logprobs");
    if (identity_.top_logprobs && !tokens.empty()) {
      WriteCompletionLogprobs(tokens, {*identity_.top_logprobs, identity_.tokens_as_ids}, codec_, text_offset, json);
    } else {
      json->Null();
    }
    if (identity_.prompt_logprobs) {
      json->Key("prompt_logprobs");
      WritePromptLogprobs(said.prompt_tokens, *identity_.prompt_logprobs, codec_, json);
    }
    WriteFinish(end, json);
    if (identity_.return_token_ids) WriteTokenIds(said.tokens, json);
    WriteTraces(said.tokens, json);
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
