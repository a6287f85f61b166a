#pragma once
#include <optional>
#include <string_view>

#include "common/tracing/trace_span.h"
#include "winnow/v1/rank.pb.h"

namespace winnow {

struct Sequence;

// What a traced request does on an inference rank: a span for the attempt, below the router's, and below it one after
// the other its phases, "queue", "open", "prefill" and "decode", again from the first on where it is preempted. Engine
// thread, but for the constructor and context().
class SequenceSpans {
 public:
  // `attempt` is the router's span. The sequence waits from now on.
  SequenceSpans(SpanSink* sink, const TraceContext& attempt);

  // Of the attempt's span here: those of the cache ranks are below it. Any thread.
  const TraceContext& context() const { return span_.context; }

  // The cache ranks are asked to open or attach the sequence, perhaps again.
  void Opening();
  // They have: the next step computes its prompt, of which so many tokens are there, or goes on behind it.
  void Opened(uint32_t cached_tokens, bool computes_prompt);
  // It has its prompt, and decodes.
  void PromptEnds();
  void Preempted();
  // The last call that counts. `outcome` is "stop", "length", "handed_over", "cancelled" or "failed".
  void End(const Sequence& sequence, const v1::SelectionStats& stats, std::string_view outcome);

 private:
  void BeginPhase(const char* name);
  void EndPhase(uint64_t unix_nanos);

  SpanSink* const sink_;
  TraceSpan span_;
  std::optional<TraceSpan> phase_;  // the one under way
  bool ended_ = false;
};

}  // namespace winnow
