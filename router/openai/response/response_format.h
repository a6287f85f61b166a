#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "router/chat_output/message_delta.h"
#include "router/generation/generation.h"
#include "router/generation/text_codec.h"
#include "router/openai/json/api_error.h"
#include "router/openai/json/json_document.h"
#include "router/openai/json/json_writer.h"
#include "router/openai/response/usage.h"

namespace winnow {

// What a response says of its request.
struct ResponseIdentity {
  std::string id;  // "cmpl-..." or "chatcmpl-..."
  int64_t created_unix_s = 0;
  std::string model;
  std::optional<uint32_t> top_logprobs;
  bool echoes_logprobs = false;  // the log probabilities of a choice begin with those of its prompt
  std::optional<uint32_t> prompt_logprobs;
  bool tokens_as_ids = false;
  bool return_token_ids = false;
  bool include_usage = false;  // chunks carry "usage": null, as OpenAI's do
};

// How an output ended.
struct ChoiceEnd {
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  std::optional<std::string> stop_match = {};
  bool called_tools = false;  // clients want to hear that this is why it ended
};

// One finished output.
struct ChoiceResult {
  std::vector<v1::Token> prompt_tokens = {};  // where their log probabilities are wanted
  MessageDelta message;
  std::vector<v1::Token> tokens;
  ChoiceEnd end;
};

// Tokens of one choice so far, with "continuous_usage_stats".
struct ChunkUsage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
};

// New tokens of a choice, and what became final with them.
struct ChoiceDelta {
  std::vector<v1::Token> prompt_tokens = {};
  MessageDelta message;
  std::vector<v1::Token> tokens;
};

// An event of a stream; its name is empty where the events of a stream have none.
struct StreamEvent {
  std::string_view name = {};
  std::string data;
};
using StreamEvents = std::vector<StreamEvent>;

// Writes a response, whole or as the events of a stream, as OpenAI's API has them. One per request. A chunk carries
// `usage` where there is one.
class ResponseFormat {
 public:
  virtual ~ResponseFormat() = default;

  virtual std::string Whole(const std::vector<ChoiceResult>& choices, const UsageTotals& usage) = 0;

  // How far a prompt of the request is: no choices.
  virtual StreamEvents PromptChunk(uint32_t prompt_index, const PromptProgress& progress) = 0;
  // Opens a choice of a stream.
  virtual StreamEvents FirstChunk(uint32_t /*choice*/, const std::optional<ChunkUsage>& /*usage*/) { return {}; }
  // `text_offset`: characters of this choice so far; advanced.
  virtual StreamEvents DeltaChunk(uint32_t choice, const ChoiceDelta& delta, const std::optional<ChunkUsage>& usage,
                                  size_t* text_offset) = 0;
  virtual StreamEvents EndChunk(uint32_t choice, const ChoiceEnd& end, const std::optional<ChunkUsage>& usage) = 0;
  // What a stream ends with once all choices have ended, and what it breaks off with.
  virtual StreamEvents End(const UsageTotals& usage) = 0;
  virtual StreamEvents Failure(const ApiError& error) { return {{.data = ErrorJson(error)}}; }
};

std::unique_ptr<ResponseFormat> MakeCompletionFormat(ResponseIdentity identity, const TextCodec* codec);
std::unique_ptr<ResponseFormat> MakeChatFormat(ResponseIdentity identity, const TextCodec* codec);

// `echoed`: what the response repeats of its request. Of one choice alone.
std::unique_ptr<ResponseFormat> MakeResponsesFormat(ResponseIdentity identity, Json echoed, const TextCodec* codec);

// The parts that completions and chats share.
void WriteResponseHead(const ResponseIdentity& identity, const char* object, JsonWriter* json);
void WriteFinish(const ChoiceEnd& end, JsonWriter* json);
void WriteChunkUsage(const ResponseIdentity& identity, const std::optional<ChunkUsage>& usage, JsonWriter* json);
void WriteTokenIds(const std::vector<v1::Token>& tokens, JsonWriter* json);
StreamEvents FormatPromptChunk(const ResponseIdentity& identity, const char* object, uint32_t prompt_index,
                               const PromptProgress& progress);
// The last chunk where usage was asked for, without choices, and the word that ends a stream.
StreamEvents FormatStreamEnd(const ResponseIdentity& identity, const char* object, const UsageTotals& usage);

}  // namespace winnow
