#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/selection/selection_spec.h"
#include "winnow/v1/rank.pb.h"
#include "winnow/v1/sampling.pb.h"

namespace winnow {

// One sample of one request, in token ids: what the dispatcher sends to an inference rank.
struct TokenRequest {
  std::vector<uint32_t> prompt_token_ids;
  std::string tenant = {};      // whose cached prefixes it may share
  v1::SamplingParams sampling;  // seed and sample_index set
  v1::StoppingParams stopping;
  SelectionSpec selection;
  std::optional<uint32_t> top_logprobs;
  std::chrono::system_clock::time_point deadline;
  // Requests of the same group (the samples of one prompt) go to the same ranks, where they share the prompt's KV. 0 =
  // none.
  uint64_t group = 0;
  int32_t priority = 0;  // higher goes first
};

// Receives what becomes of a TokenRequest. Called from the dispatcher's threads, one call at a time per stream, never
// while the observer's owner destroys the stream. OnTokens any number of times (indices 0, 1, 2 ... without gap or
// repeat, whatever rank failures happen behind it), then exactly one of OnFinished and OnFailed.
class TokenObserver {
 public:
  virtual ~TokenObserver() = default;
  // Before the first OnTokens, at most once: so many tokens of the prompt came from the prefix cache.
  virtual void OnCachedPrompt(uint32_t /*tokens*/) {}
  virtual void OnTokens(uint32_t first_index, const std::vector<v1::Token>& tokens) = 0;
  virtual void OnFinished(v1::FinishReason reason, const v1::SelectionStats& stats) = 0;
  virtual void OnFailed(const absl::Status& status) = 0;
};

// A request under way. Destroying it cancels what is left, frees everything downstream, and returns once no callback is
// running. It may be destroyed inside its own callback.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
};

// Starts requests; the dispatcher is the real one, tests have a scripted one.
class TokenGenerator {
 public:
  virtual ~TokenGenerator() = default;
  // `observer` must outlive the stream. RESOURCE_EXHAUSTED when the queue is full, UNAVAILABLE when no rank can serve.
  virtual absl::StatusOr<std::unique_ptr<TokenStream>> Start(TokenRequest request, TokenObserver* observer) = 0;
};

}  // namespace winnow
