#include "tools/bench/quality/saved_prompt.h"

#include <algorithm>

namespace winnow {
namespace {

// More than any predictor looks back (SelectionSpec::window + 1).
constexpr uint32_t kSavedQueries = 64;

}  // namespace

// Keeps what each chunk computes.
class SavedPrompt::Recorder final : public PrefillKv {
 public:
  Recorder(SavedPrompt& saved, size_t query_floats) : saved_(saved), query_floats_(query_floats) {}

  void Begin(uint32_t first, uint32_t count) {
    first_ = first;
    count_ = count;
  }
  Rows Publish(int layer, const std::byte* kv_rows, const float* q_pre_rope) override {
    PrefillArena& arena = saved_.arena_;
    arena.Store(layer, first_, count_, kv_rows);
    const uint32_t from = std::max(first_, saved_.first_query_);
    if (from < first_ + count_) {
      std::vector<float>& queries = saved_.queries_[static_cast<size_t>(layer)];
      queries.insert(queries.end(), q_pre_rope + (from - first_) * query_floats_, q_pre_rope + count_ * query_floats_);
    }
    return {.kv = arena.row(layer, 0, 0), .head_stride = arena.prompt_tokens()};
  }

 private:
  SavedPrompt& saved_;
  const size_t query_floats_;
  uint32_t first_ = 0, count_ = 0;
};

absl::StatusOr<SavedPrompt> SavedPrompt::Prefill(Transformer& transformer, const KvLayout& layout,
                                                 std::span<const uint32_t> tokens, uint32_t chunk_tokens) {
  const uint32_t length = static_cast<uint32_t>(tokens.size());
  WINNOW_ASSIGN_OR_RETURN(PrefillArena arena, PrefillArena::Create(layout, length));
  SavedPrompt saved(std::move(arena));
  saved.first_query_ = length > kSavedQueries ? length - kSavedQueries : 0;
  saved.queries_.resize(static_cast<size_t>(layout.num_layers));
  Recorder recorder(saved, static_cast<size_t>(layout.num_query_heads) * layout.head_dim);
  for (uint32_t first = 0; first < length;) {
    const bool last = first + 1 == length;
    const uint32_t count = last ? 1 : std::min(chunk_tokens, length - 1 - first);
    recorder.Begin(first, count);
    const std::span<float> logits = transformer.Prefill(tokens.subspan(first, count), first, last, recorder);
    if (last) saved.logits_.assign(logits.begin(), logits.end());
    first += count;
  }
  return saved;
}

absl::Status SavedPrompt::HandTo(Sequence& sequence, const KvLayout& layout, PromptSender& sender) const {
  const uint32_t length = arena_.prompt_tokens();
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    WINNOW_RETURN_IF_ERROR(sender.SendRows(sequence, RowsOfArena(layout, arena_, layer, 0), layer, 0, length));
    WINNOW_RETURN_IF_ERROR(sender.SendQueries(sequence, layer, first_query_, length - first_query_,
                                              queries_[static_cast<size_t>(layer)].data()));
  }
  LoadPrompt(layout, arena_, sequence);
  sequence.next_position = length;
  return absl::OkStatus();
}

}  // namespace winnow
