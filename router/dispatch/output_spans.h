#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/tracing/trace_span.h"

namespace winnow {

// What the trace of a request says of one of its outputs, below the request's span: the phases "queue", "prefill" and
// "decode" as the router sees them, and a span for each attempt at an inference rank, whose context goes there. Events
// tell of attempts that were lost. The dispatcher and the generation call it from threads of their own.
class OutputSpans {
 public:
  // The output waits from now on. `output_index` is told where there are several. Without a sink there are no spans,
  // and ranks get contexts all the same.
  OutputSpans(SpanSink* sink, const TraceContext& request, std::optional<uint32_t> output_index);

  // The dispatcher's.
  // An attempt begins, the only one under way; `how` is "open", "attach" or "resume". Returns its context.
  TraceContext BeginAttempt(const std::string& rank, std::string_view how);
  // The attempt under way, if there is one, has ended: OK where the rank has done what it was asked for.
  void EndAttempt(const absl::Status& status);
  // The next attempt goes on with what the lost one has left ("reattach"), or begins anew ("recompute").
  void NoteFailover(const std::string& from_rank, std::string_view how, const absl::Status& why);
  void NoteEvent(std::string_view name);

  // The generation's.
  void NoteFirstToken(uint32_t cached_prompt_tokens);
  // The output has ended: its phases are over. An attempt that is still under way ends by itself.
  void End();
  // The events since the last such call, for the request's span.
  std::vector<SpanEvent> TakeEvents();

 private:
  void BeginPhase(const char* name);  // mutex_ held
  void EndPhase();                    // mutex_ held
  void Label(TraceSpan* span) const;

  SpanSink* const sink_;
  const TraceContext request_;
  const std::optional<uint32_t> output_index_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::optional<TraceSpan> phase_;
  std::optional<TraceSpan> attempt_;
  std::vector<SpanEvent> events_;
};

}  // namespace winnow
