#include <utility>

#include "router/openai/response/logprobs.h"
#include "router/openai/response/response_format.h"
#include "router/openai/response/trace_json.h"

namespace winnow {
namespace {

constexpr char kChatObject[] = "chat.completion";
constexpr char kChatChunkObject[] = "chat.completion.chunk";

class ChatFormat : public ResponseFormat {
 public:
  ChatFormat(ResponseIdentity identity, const TextCodec* codec) : identity_(std::move(identity)), codec_(*codec) {}

  std::string Whole(const std::vector<ChoiceResult>& choices, const UsageTotals& usage) override {
    JsonWriter json;
    json.BeginObject();
    WriteResponseHead(identity_, kChatObject, &json);
    json.Key("choices").BeginArray();
    for (uint32_t i = 0; i < choices.size(); ++i) {
      const ChoiceResult& choice = choices[i];
      json.BeginObject();
      json.Key("index").Int(i);
      json.Key("message");
      WriteMessage(choice.message, &json);
      WriteLogprobs(choice.tokens, &json);
      WriteFinish(choice.end, &json);
      if (identity_.return_token_ids) WriteTokenIds(choice.tokens, &json);
      WriteTraces(choice.tokens, &json);
      json.EndObject();
    }
    json.EndArray();
    if (identity_.prompt_logprobs && !choices.empty()) {
      json.Key("prompt_logprobs");
      WritePromptLogprobs(choices[0].prompt_tokens, *identity_.prompt_logprobs, codec_, &json);
    }
    json.Key("usage");
    usage.Write(&json);
    json.EndObject();
    return json.Take();
  }

  StreamEvents FirstChunk(uint32_t choice, const std::optional<ChunkUsage>& usage) override {
    JsonWriter json;
    OpenChunk(choice, &json);
    json.Key("role").String("assistant").Key("content").String("");
    CloseChunk({}, {}, usage, &json);
    return {{.data = json.Take()}};
  }

  StreamEvents DeltaChunk(uint32_t choice, const ChoiceDelta& delta, const std::optional<ChunkUsage>& usage,
                          size_t*) override {
    const MessageDelta& message = delta.message;
    JsonWriter json;
    OpenChunk(choice, &json);
    if (!message.reasoning.empty()) json.Key("reasoning_content").String(message.reasoning);
    // Tokens without text still make a chunk, and clients expect content in one.
    if (!message.content.empty() || message.empty()) json.Key("content").String(message.content);
    if (!message.tool_calls.empty()) {
      json.Key("tool_calls").BeginArray();
      for (const ToolCallDelta& call : message.tool_calls) WriteToolCall(call, /*whole=*/false, &json);
      json.EndArray();
    }
    CloseChunk(delta.tokens, {}, usage, &json);
    return {{.data = json.Take()}};
  }

  StreamEvents EndChunk(uint32_t choice, const ChoiceEnd& end, const std::optional<ChunkUsage>& usage) override {
    JsonWriter json;
    OpenChunk(choice, &json);
    CloseChunk({}, end, usage, &json);
    return {{.data = json.Take()}};
  }

  StreamEvents PromptChunk(uint32_t prompt_index, const PromptProgress& progress) override {
    return FormatPromptChunk(identity_, kChatChunkObject, prompt_index, progress);
  }

  StreamEvents End(const UsageTotals& usage) override { return FormatStreamEnd(identity_, kChatChunkObject, usage); }

 private:
  // Up to and into "delta".
  void OpenChunk(uint32_t choice, JsonWriter* json) const {
    json->BeginObject();
    WriteResponseHead(identity_, kChatChunkObject, json);
    json->Key("choices").BeginArray().BeginObject();
    json->Key("index").Int(choice);
    json->Key("delta").BeginObject();
  }

  void CloseChunk(const std::vector<v1::Token>& tokens, const ChoiceEnd& end, const std::optional<ChunkUsage>& usage,
                  JsonWriter* json) const {
    json->EndObject();
    WriteLogprobs(tokens, json);
    WriteFinish(end, json);
    if (identity_.return_token_ids) WriteTokenIds(tokens, json);
    WriteTraces(tokens, json);
    json->EndObject().EndArray();
    WriteChunkUsage(identity_, usage, json);
    json->EndObject();
  }

  static void WriteMessage(const MessageDelta& message, JsonWriter* json) {
    json->BeginObject();
    json->Key("role").String("assistant");
    json->Key("content");
    message.content.empty() && !message.tool_calls.empty() ? json->Null() : json->String(message.content);
    json->Key("refusal").Null();
    if (!message.reasoning.empty()) json->Key("reasoning_content").String(message.reasoning);
    if (!message.tool_calls.empty()) {
      json->Key("tool_calls").BeginArray();
      for (const ToolCallDelta& call : message.tool_calls) WriteToolCall(call, /*whole=*/true, json);
      json->EndArray();
    }
    json->EndObject();
  }

  // The pieces of a stream have an index; of a call only the first has its id and name.
  static void WriteToolCall(const ToolCallDelta& call, bool whole, JsonWriter* json) {
    json->BeginObject();
    if (!whole) json->Key("index").Int(call.index);
    if (!call.id.empty()) json->Key("id").String(call.id).Key("type").String("function");
    json->Key("function").BeginObject();
    if (!call.name.empty()) json->Key("name").String(call.name);
    json->Key("arguments").String(call.arguments);
    json->EndObject().EndObject();
  }

  void WriteLogprobs(const std::vector<v1::Token>& tokens, JsonWriter* json) const {
    json->Key("logprobs");
    if (identity_.top_logprobs && !tokens.empty()) {
      WriteChatLogprobs(tokens, {*identity_.top_logprobs, identity_.tokens_as_ids}, codec_, json);
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
