#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/selection/selection_spec.h"
#include "common/tracing/trace_context.h"
#include "router/generation/text_decoder.h"
#include "router/keys/caller.h"
#include "winnow/v1/rank.pb.h"
#include "winnow/v1/sampling.pb.h"

namespace winnow {

// A validated request with its prompt in token ids: what both front ends (HTTP and gRPC) hand to Generation. Text out.
struct GenerationInput {
  std::string request_id;
  std::vector<uint32_t> prompt_token_ids;
  Caller caller = {};
  uint32_t n = 1;
  v1::SamplingParams sampling;  // seed may be absent: one is drawn; sample_index is the first output's
  uint32_t max_tokens = 0;      // already limited to what is left of the context
  std::vector<std::string> stop;
  std::vector<uint32_t> stop_token_ids;
  bool ignore_eos = false;
  TextDecoding decoding = {};
  bool include_stop = false;  // what ended the output is part of its text
  std::optional<uint32_t> top_logprobs;
  SelectionSpec selection;
  int32_t priority = 0;            // -100 to 100, higher goes first
  uint32_t trace_parts = 0;        // tokens carry a SelectionTrace of so many parts; 0: none does
  bool skip_prefix_cache = false;  // all of the prompt is computed
  bool prompt_progress = false;    // the observer hears how far the prompt is
  // The observer hears how likely the prompt's tokens were, and this many most likely ones at their places.
  std::optional<uint32_t> prompt_top_logprobs = {};
  std::chrono::system_clock::time_point deadline;
  // The client may lose its connection, or its router, and go on with the answer.
  bool resumable = false;
  // It does: the request is the same but for what its token says.
  struct Resume {
    std::string token;
    std::vector<uint32_t> next_index;  // tokens that it has of each output; missing ones: 0
  };
  std::optional<Resume> resume = {};
  // For traces: what the client's span is, if it named one, and what OpenTelemetry calls such a request.
  std::optional<TraceContext> trace_parent = {};
  std::string_view operation = "text_completion";  // or "chat"
};

// New tokens of one output and the text that is final with them. Text may lag behind tokens: incomplete UTF-8 and what
// could be the beginning of a stop string is held back. The text pieces of an output concatenate to its whole text.
//
// Of an answer that is resumed all deltas come again, because text depends on what was before it; one ends where the
// tokens that the client has end.
struct TextDelta {
  uint32_t output_index = 0;
  uint32_t first_index = 0;
  std::vector<v1::Token> tokens;
  std::string text;
};

struct OutputEnd {
  uint32_t output_index = 0;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  std::optional<std::string> stop_match;
  std::optional<v1::SelectionStats> stats;  // absent after a stop string: the router ends the sequence, not its rank
};

struct GenerationUsage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t cached_prompt_tokens = 0;  // of prompt_tokens: not computed for the first output
};

// How far the prompt is. It may go back where the request has moved to another rank.
struct PromptProgress {
  uint32_t computed_tokens = 0;  // of the prompt: they need not be computed any more; those that were cached included
  uint32_t cached_tokens = 0;
  uint32_t prompt_tokens = 0;
};

// Called from dispatcher threads, one call at a time per generation: OnPromptProgress and OnPromptTokens, to requests
// that ask for them, before the first output's first OnDelta; OnDelta and OnOutputEnd in any interleaving of outputs,
// then exactly one of OnDone (after every output has ended) and OnFailed.
class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  virtual void OnPromptProgress(const PromptProgress& /*progress*/) {}
  // Tokens of the prompt with their log probabilities: each once, in order, from the second on.
  virtual void OnPromptTokens(const std::vector<v1::Token>& /*tokens*/) {}
  virtual void OnDelta(const TextDelta& delta) = 0;
  virtual void OnOutputEnd(const OutputEnd& end) = 0;
  virtual void OnDone(const GenerationUsage& usage) = 0;
  virtual void OnFailed(const absl::Status& status) = 0;
};

// What a fork of one output changes.
struct ForkInput {
  uint32_t output_index = 0;
  Caller caller = {};                    // its tenant must be the source's
  std::optional<uint32_t> sample_index;  // absent: one that no output and no fork of the generation has had
  std::optional<uint32_t> max_tokens;    // counted from the source's first token; at most the source's
  std::chrono::system_clock::time_point deadline;
};

class GenerationHandle;
struct GenerationFork {
  std::unique_ptr<GenerationHandle> handle;
  uint32_t prompt_tokens = 0;
  uint32_t forked_tokens = 0;  // of the source, with which the output begins; they are not told again
  SelectionSpec selection;
};

// A generation under way. Destroying it cancels what is left and returns once no callback is running (or from inside
// one).
class GenerationHandle {
 public:
  virtual ~GenerationHandle() = default;
  // A new generation with one output, which goes on from where an output of this one is; independent of this one from
  // then on. Any thread. NOT_FOUND when the output is over.
  virtual absl::StatusOr<GenerationFork> Fork(const ForkInput& /*input*/, GenerationObserver* /*observer*/) {
    return absl::UnimplementedError("this generation cannot be forked");
  }
  // Of a resumable request; else empty.
  virtual std::string resume_token() const { return {}; }
  // The client has gone without a word: a resumable request is not cancelled when this is destroyed, but kept by its
  // ranks for whoever resumes it.
  virtual void Leave() {}
};

class Generation {
 public:
  virtual ~Generation() = default;
  // `observer` must outlive the handle. Statuses as TokenGenerator::Start.
  virtual absl::StatusOr<std::unique_ptr<GenerationHandle>> Start(GenerationInput input,
                                                                  GenerationObserver* observer) = 0;
  // Ends the request that has this resume token, whether or not a client listens to it, on whatever router.
  virtual absl::Status Abort(const std::string& /*resume_token*/, const Caller& /*caller*/) {
    return absl::UnimplementedError("resume_token: requests cannot be resumed here");
  }
};

}  // namespace winnow
