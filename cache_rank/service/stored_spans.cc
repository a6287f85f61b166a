#include "cache_rank/service/stored_spans.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace winnow {
namespace {

void SetKv(const CachedSequence& sequence, bool two_tiers, TraceSpan* span) {
  uint64_t rows = 0;
  for (int layer = 0; layer < sequence.layout.num_layers; ++layer) {
    rows += uint64_t{sequence.kv.rows(layer)} * sequence.num_kv_heads();
  }
  const uint64_t bytes = rows * sequence.layout.row_bytes();
  span->Set("winnow.kv.positions", sequence.kv.watermark());
  span->Set("winnow.kv.rows", rows);
  span->Set("winnow.kv.scored_key_bytes", sequence.ScoredKeyBytes());
  span->Set("winnow.kv.working_set_rows", sequence.WorkingSetRows());
  if (two_tiers) {
    span->Set("winnow.kv.fast_tier.index_bytes", uint64_t{sequence.kv.index_bytes()});
    span->Set("winnow.kv.large_tier.bytes", bytes);
    span->Set("winnow.kv.large_tier.loaded_rows", sequence.kv.loaded_rows());
  } else {
    span->Set("winnow.kv.memory.bytes", bytes);
  }
}

}  // namespace

StoredSpans::~StoredSpans() {
  for (auto& [id, open] : open_) Finish(std::move(open), nullptr, "stopped");
}

void StoredSpans::Begin(const char* name, const std::optional<TraceContext>& trace, uint64_t start_unix_nanos,
                        const CachedSequence& sequence) {
  if (sink_ == nullptr) return;
  // What an earlier sequence of the number has left.
  if (const auto old = open_.find(sequence.id); old != open_.end()) {
    Finish(std::move(old->second), nullptr, "released");
    open_.erase(old);
  }
  if (!trace || !trace->sampled) return;
  Open open{ChildSpan(*trace, name, SpanKind::kServer, start_unix_nanos), sequence.attach_epoch};
  open.span.Set("winnow.sequence_id", absl::StrCat(absl::Hex(sequence.id, absl::kZeroPad16)));
  open.span.Set("winnow.attach_epoch", sequence.attach_epoch);
  open.span.Set("winnow.cached_tokens", sequence.kv.watermark());
  open.span.AddEvent("attached");
  open_.emplace(sequence.id, std::move(open));
}

void StoredSpans::End(const CachedSequence* sequence, std::string_view outcome) {
  if (open_.empty() || sequence == nullptr) return;
  const auto found = open_.find(sequence->id);
  if (found == open_.end() || found->second.attach_epoch != sequence->attach_epoch) return;
  Finish(std::move(found->second), sequence, outcome);
  open_.erase(found);
}

void StoredSpans::Sweep(const SequenceStore& store) {
  for (auto next = open_.begin(); next != open_.end();) {
    const auto entry = next++;
    const CachedSequence* const sequence = store.Find(entry->first);
    const bool is_held =
        sequence != nullptr && sequence->attached() && sequence->attach_epoch == entry->second.attach_epoch;
    if (is_held) continue;
    Finish(std::move(entry->second), sequence, sequence == nullptr ? "released" : "detached");
    open_.erase(entry);
  }
}

void StoredSpans::Finish(Open open, const CachedSequence* sequence, std::string_view outcome) {
  open.span.end_unix_nanos = UnixNanosNow();
  open.span.Set("winnow.outcome", SpanValue(std::string(outcome)));
  if (sequence != nullptr) SetKv(*sequence, two_tiers_, &open.span);
  sink_->Add(std::move(open.span));
}

}  // namespace winnow
