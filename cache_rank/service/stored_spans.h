#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "cache_rank/store/sequence_store.h"
#include "common/tracing/trace_span.h"

namespace winnow {

// Spans of the traced sequences that inference ranks have attached: from the call that opens, attaches or forks one
// until it is released, detached or taken over, with what it has by then of which memory. Data-plane thread.
class StoredSpans {
 public:
  // Null: nothing is traced, and every call returns at once.
  StoredSpans(SpanSink* sink, bool two_tiers) : sink_(sink), two_tiers_(two_tiers) {}
  ~StoredSpans();

  // The sequence is attached, by a call below `trace` that began then. `name` says which.
  void Begin(const char* name, const std::optional<TraceContext>& trace, uint64_t start_unix_nanos,
             const CachedSequence& sequence);
  // `sequence` is about to be attached by another or to be let go of, if it is there.
  void End(const CachedSequence* sequence, std::string_view outcome);
  // Ends those that were let go of otherwise: their inference rank is gone, or their router has given them up.
  void Sweep(const SequenceStore& store);

 private:
  struct Open {
    TraceSpan span;
    uint32_t attach_epoch = 0;
  };
  void Finish(Open open, const CachedSequence* sequence, std::string_view outcome);

  SpanSink* const sink_;
  const bool two_tiers_;                     // rows lie in the large one
  std::unordered_map<uint64_t, Open> open_;  // by sequence
};

}  // namespace winnow
