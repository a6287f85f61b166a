#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "router/generation/generation.h"
#include "router/generation/served_model.h"
#include "router/generation/text_codec.h"
#include "router/openai/json/json_reader.h"
#include "router/openai/request/request_fields.h"

namespace winnow {

inline constexpr int64_t kMaxTopLogprobs = 20;
inline constexpr int64_t kMaxSamples = 128;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 1024;  // of one stop string
inline constexpr size_t kMaxStopTokenIds = 64;
inline constexpr size_t kMaxLogitBiases = 4096;
inline constexpr size_t kMaxChoices = 1024;  // prompts times n

// What completions and chat completions have in common.
struct CommonFields {
  std::string model;  // as the request names it
  uint32_t n = 1;
  v1::SamplingParams sampling;
  std::vector<std::string> stop;
  std::vector<uint32_t> stop_token_ids;
  bool ignore_eos = false;
  SelectionSpec selection;
  int32_t priority = 0;
  uint32_t trace_parts = 0;  // 0: no trace
  bool skip_prefix_cache = false;
  bool prompt_progress = false;  // the stream tells how far its prompts are
  bool resumable = false;        // a stream, of one prompt

  bool stream = false;
  bool include_usage = false;
  bool continuous_usage_stats = false;  // every chunk carries the counts so far
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // log probabilities name tokens by id
  bool skip_special_tokens = true;
  bool include_stop = false;  // the stop string is part of the text
};

// Checks "model" and that every field is known and served (CheckFields), and reads every field that is neither the
// prompt, a token limit nor logprobs.
absl::StatusOr<CommonFields> ParseCommonFields(const Json& body, const ServedModel& model, const TextCodec& codec,
                                               Endpoint endpoint);

// "min_tokens" beyond what the answer may have is an error.
absl::Status CheckMinTokens(const v1::SamplingParams& sampling, uint32_t max_tokens);

// Token ids of a list; `path` names the list in errors. Each must be below the vocabulary's size.
absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(const Json& list, std::string_view path, uint32_t vocab_size);

}  // namespace winnow
