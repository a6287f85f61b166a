#include "router/openai/response/logprobs.h"

#include <algorithm>
#include <vector>

#include "common/base/status.h"
#include "router/openai/json/utf8_scan.h"

namespace winnow {
namespace {

// JSON has no minus infinity; OpenAI's floor for what is (almost) impossible.
constexpr float kLogprobFloor = -9999.0f;

void WriteLogprob(float logprob, JsonWriter* json) {
  json->Float(std::max(logprob, kLogprobFloor));
}

void WriteTokenLogprob(const v1::Token& token, JsonWriter* json) {
  token.has_logprob() ? WriteLogprob(token.logprob(), json) : static_cast<void>(json->Null());
}

std::string LabelOf(uint32_t id, const LogprobsShown& shown, const TextCodec& codec) {
  return shown.tokens_as_ids ? absl::StrCat("token_id:", id) : TokenLabel(codec.TokenText(id));
}

void WriteChatToken(uint32_t id, const LogprobsShown& shown, const TextCodec& codec, JsonWriter* json) {
  const std::string bytes = codec.TokenText(id);
  json->Key("token").String(LabelOf(id, shown, codec));
  json->Key("bytes").BeginArray();
  for (const char c : bytes) json->Int(static_cast<int>(static_cast<unsigned char>(c)));
  json->EndArray();
}

void WriteTopMap(const v1::Token& token, const LogprobsShown& shown, const TextCodec& codec, JsonWriter* json) {
  // Tokens come most likely first; of two that look the same the likelier stays.
  std::vector<std::string> seen;
  json->BeginObject();
  for (const v1::TokenLogprob& candidate : token.top_logprobs()) {
    if (seen.size() == shown.top) break;
    std::string label = LabelOf(candidate.id(), shown, codec);
    if (std::find(seen.begin(), seen.end(), label) != seen.end()) continue;
    json->Key(label);
    WriteLogprob(candidate.logprob(), json);
    seen.push_back(std::move(label));
  }
  json->EndObject();
}

}  // namespace

std::string TokenLabel(std::string_view bytes) {
  if (IsUtf8(bytes)) return std::string(bytes);
  std::string label = "bytes:";
  for (const char c : bytes) absl::StrAppend(&label, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
  return label;
}

void WriteCompletionLogprobs(std::span<const v1::Token> tokens, const LogprobsShown& shown, const TextCodec& codec,
                             size_t* text_offset, JsonWriter* json) {
  json->BeginObject();
  json->Key("tokens").BeginArray();
  for (const v1::Token& token : tokens) json->String(LabelOf(token.id(), shown, codec));
  json->EndArray();
  json->Key("token_logprobs").BeginArray();
  for (const v1::Token& token : tokens) WriteTokenLogprob(token, json);
  json->EndArray();
  json->Key("top_logprobs");
  if (shown.top == 0) {
    json->Null();
  } else {
    json->BeginArray();
    for (const v1::Token& token : tokens) {
      token.has_logprob() ? WriteTopMap(token, shown, codec, json) : static_cast<void>(json->Null());
    }
    json->EndArray();
  }
  json->Key("text_offset").BeginArray();
  for (const v1::Token& token : tokens) {
    json->Int(*text_offset);
    *text_offset += CountCharacterStarts(codec.TokenText(token.id()));
  }
  json->EndArray();
  json->EndObject();
}

void WritePromptLogprobs(std::span<const v1::Token> tokens, uint32_t top, const TextCodec& codec, JsonWriter* json) {
  const auto write = [&](uint32_t id, float logprob, uint32_t rank) {
    json->Key(std::to_string(id)).BeginObject().Key("logprob");
    WriteLogprob(logprob, json);
    json->Key("rank").Int(rank).Key("decoded_token").String(TokenLabel(codec.TokenText(id))).EndObject();
  };
  json->BeginArray();
  for (const v1::Token& token : tokens) {
    if (!token.has_logprob()) {
      json->Null();
      continue;
    }
    json->BeginObject();
    write(token.id(), token.logprob(), token.rank());
    const int count = std::min<int>(static_cast<int>(top), token.top_logprobs_size());
    for (int i = 0; i < count; ++i) {
      const v1::TokenLogprob& candidate = token.top_logprobs(i);
      if (candidate.id() != token.id()) write(candidate.id(), candidate.logprob(), static_cast<uint32_t>(i) + 1);
    }
    json->EndObject();
  }
  json->EndArray();
}

void WriteTokenLogprobs(std::span<const v1::Token> tokens, const LogprobsShown& shown, const TextCodec& codec,
                        JsonWriter* json) {
  json->BeginArray();
  for (const v1::Token& token : tokens) {
    json->BeginObject();
    WriteChatToken(token.id(), shown, codec, json);
    json->Key("logprob");
    WriteTokenLogprob(token, json);
    json->Key("top_logprobs").BeginArray();
    const int count = std::min<int>(static_cast<int>(shown.top), token.top_logprobs_size());
    for (int i = 0; i < count; ++i) {
      json->BeginObject();
      WriteChatToken(token.top_logprobs(i).id(), shown, codec, json);
      json->Key("logprob");
      WriteLogprob(token.top_logprobs(i).logprob(), json);
      json->EndObject();
    }
    json->EndArray().EndObject();
  }
  json->EndArray();
}

void WriteChatLogprobs(std::span<const v1::Token> tokens, const LogprobsShown& shown, const TextCodec& codec,
                       JsonWriter* json) {
  json->BeginObject().Key("content");
  WriteTokenLogprobs(tokens, shown, codec, json);
  json->Key("refusal").Null().EndObject();
}

}  // namespace winnow
