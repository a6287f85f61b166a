#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "router/chat_output/message_delta.h"
#include "router/generation/generation.h"
#include "router/generation/text_codec.h"
#include "router/openai/json_writer.h"
#include "router/openai/usage.h"

namespace winnow {

// What a response says of its request.
struct ResponseIdentity {
  std::string id;  // "cmpl-..." or "chatcmpl-..."
  int64_t created_unix_s = 0;
  std::string model;
  std::optional<uint32_t> top_logprobs;
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
  MessageDelta message;
  std::vector<v1::Token> tokens;
};

// Writes the JSON of responses, whole or as the chunks of a stream, as OpenAI's API has them. One per request; it keeps
// nothing between calls but what it was made with. A chunk carries `usage` where there is one.
class ResponseFormat {
 public:
  virtual ~ResponseFormat() = default;

  virtual std::string Whole(const std::vector<ChoiceResult>& choices, const UsageTotals& usage) const = 0;

  // Opens a choice of a stream; empty when this kind of response has no such chunk.
  virtual std::string FirstChunk(uint32_t choice, const std::optional<ChunkUsage>& usage) const = 0;
  // `text_offset`: characters of this choice so far; advanced.
  virtual std::string DeltaChunk(uint32_t choice, const ChoiceDelta& delta, const std::optional<ChunkUsage>& usage,
                                 size_t* text_offset) const = 0;
  virtual std::string EndChunk(uint32_t choice, const ChoiceEnd& end, const std::optional<ChunkUsage>& usage) const = 0;
  // How far a prompt of the request is: no choices. Empty when this kind of response has no such chunk.
  virtual std::string PromptChunk(uint32_t prompt_index, const PromptProgress& progress) const = 0;
  // The last chunk when usage was asked for: no choices.
  virtual std::string UsageChunk(const UsageTotals& usage) const = 0;
};

std::unique_ptr<ResponseFormat> MakeCompletionFormat(ResponseIdentity identity, const TextCodec* codec);
std::unique_ptr<ResponseFormat> MakeChatFormat(ResponseIdentity identity, const TextCodec* codec);

// The parts that both kinds share.
void WriteResponseHead(const ResponseIdentity& identity, const char* object, JsonWriter* json);
void WriteFinish(const ChoiceEnd& end, JsonWriter* json);
void WriteChunkUsage(const ResponseIdentity& identity, const std::optional<ChunkUsage>& usage, JsonWriter* json);
void WriteTokenIds(const std::vector<v1::Token>& tokens, JsonWriter* json);
std::string FormatPromptChunk(const ResponseIdentity& identity, const char* object, uint32_t prompt_index,
                              const PromptProgress& progress);
std::string FormatUsageChunk(const ResponseIdentity& identity, const char* object, const UsageTotals& usage);

}  // namespace winnow
