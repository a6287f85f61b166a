#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/model/rope.h"
#include "model/token_draw.h"

namespace winnow {

inline constexpr int kMaxDecodeRows = 64;

// Heads [first, first + count) of a model: those of one of the GPUs that share it.
struct HeadRange {
  int first = 0;
  int count = 0;
};

// What one decode layer offers before its attention. All [num_rows, ...], valid until the next layer.
struct DecodeLayerOutput {
  int layer = 0;
  const std::byte* kv_rows = nullptr;  // [num_rows, num_kv_heads] rows
  const float* q_pre_rope = nullptr;   // [num_rows, num_query_heads, head_dim]
  const float* prediction =
      nullptr;  // same shape: queries predicted for prediction_layer, before RoPE; null when there are none
  int prediction_layer = 0;
  const float* hidden = nullptr;  // [num_rows, hidden_size] residual that enters the layer
  int hidden_size = 0;
  // [num_rows, KvLayout::index_query_floats] of a model with an indexer, rotated; else null.
  const float* index_queries = nullptr;
  bool rows_are_resident = false;  // they lie in PlacesOfRows already
};

// The slots that a layer's attention reads: lists in the order of the query heads, row by row, each of them read by the
// next `heads` query heads, which belong to one kv head. The slots stay the caller's.
class SlotLists {
 public:
  void Clear() {
    slots_.clear();
    counts_.clear();
    heads_.clear();
    num_heads_ = head_slots_ = 0;
  }
  void Add(std::span<const uint32_t> slots, int heads) {
    slots_.push_back(slots.data());
    counts_.push_back(static_cast<uint32_t>(slots.size()));
    heads_.push_back(static_cast<uint32_t>(heads));
    num_heads_ += heads;
    head_slots_ += slots.size() * heads;
  }

  // Each list keeps its last `count` slots, or all if it has no more.
  void KeepNewest(uint32_t count) {
    for (size_t list = 0; list < slots_.size(); ++list) {
      if (counts_[list] <= count) continue;
      slots_[list] += counts_[list] - count;
      head_slots_ -= size_t{counts_[list] - count} * heads_[list];
      counts_[list] = count;
    }
  }

  size_t size() const { return slots_.size(); }
  std::span<const uint32_t> slots(size_t list) const { return {slots_[list], counts_[list]}; }
  const uint32_t* const* slots() const { return slots_.data(); }
  const uint32_t* counts() const { return counts_.data(); }
  const uint32_t* heads() const { return heads_.data(); }
  size_t num_heads() const { return num_heads_; }    // over all lists
  size_t head_slots() const { return head_slots_; }  // one that two heads read counts twice

 private:
  std::vector<const uint32_t*> slots_;
  std::vector<uint32_t> counts_, heads_;
  size_t num_heads_ = 0, head_slots_ = 0;
};

// A partial attention state over rows that are not resident, to be merged after the layer's own attention.
struct PartialAttention {
  int row = 0;
  int kv_head = 0;
  const float* o = nullptr;    // [group_size, head_dim]
  const float* lse = nullptr;  // [group_size] natural log
};

// The KV side of a decode step, implemented by the engine.
class DecodeKv {
 public:
  virtual ~DecodeKv() = default;
  // Layers ahead that queries are to be predicted for, 0 = not at all.
  virtual int Lookahead() const = 0;
  // False: Publish does without the residual that enters `layer`.
  virtual bool NeedsHidden(int /*layer*/) const { return true; }
  // True when AwaitSlots(layer) needs nothing that Publish(layer) sends. A pass may then call it first, if it has
  // written the layer's rows to their places itself.
  virtual bool SlotsComeFirst(int /*layer*/) const { return false; }
  // A little of what is to be done before the step ends, while there is nothing better to do; false when nothing is
  // left.
  virtual bool WorkMeanwhile() { return false; }
  // Takes what has come of the slots, without waiting: true when AwaitSlots(layer) would return at once.
  virtual bool PollSlots(int /*layer*/) { return true; }
  // Where the rows of this step live in the slots' memory: [num_layers, num_rows, heads.count] of those kv heads; those
  // of layers whose slots do not come first are left alone.
  virtual void PlacesOfRows(HeadRange /*heads*/, std::span<void*> /*places*/) const {}
  // The layer's rows and queries exist: make the rows resident, send everything to the cache rank.
  virtual void Publish(const DecodeLayerOutput& output) = 0;
  // Returns when the slots to attend to at `layer` are known and filled: adds the lists of all heads of all rows.
  virtual void AwaitSlots(int layer, SlotLists& lists) = 0;
  // True when AwaitPartials may return something in this step.
  virtual bool WaitsForPartials() const { return false; }
  // Of a hybrid model: what the sequence of a row keeps in the place of rows (StatePiece), which holds the positions
  // before the step's and has its position, too, when the step has ended.
  virtual float* State(int /*row*/) const { return nullptr; }
  // After the layer's attention: returns when it is known which heads are to be corrected, and how; at most one state
  // per row and kv head. Valid until the next layer's Publish.
  virtual std::span<const PartialAttention> AwaitPartials(int /*layer*/) { return {}; }
};

// The KV side of a prefill chunk.
class PrefillKv {
 public:
  struct Rows {
    const void* kv = nullptr;  // [num_kv_heads] x head_stride rows
    int64_t head_stride = 0;   // in rows
  };
  virtual ~PrefillKv() = default;
  // Where the forward pass itself writes the layer's new rows and reads the earlier ones, when they lie in memory of
  // its device: those of kv heads from `first_kv_head` on that this device has. Null `kv`: Publish keeps the rows.
  virtual Rows Destination(int /*layer*/, int /*first_kv_head*/) { return {}; }
  // Of the chunk's `num_tokens` queries Publish reads those of the last so many.
  virtual int QueriesWanted(int num_tokens) const { return num_tokens; }
  // Where a pass that writes to Destination then copies the layer's new rows, [num_kv_heads, num_tokens] rows,
  // before it calls Publish: memory that its device reaches. Null: Publish is given them.
  virtual void* PushTo(int /*layer*/) { return nullptr; }
  // The layer's rows and queries exist in host memory: keep the rows (unless Destination named a place) and send them.
  // `kv_rows` [num_tokens, num_kv_heads] rows; where Destination named a place, [num_kv_heads, num_tokens]
  // of them, or null when they were pushed. `q_pre_rope` [num_tokens, num_query_heads, head_dim]. Returns where
  // attention finds rows 0 .. first_position + num_tokens - 1 of the layer.
  virtual Rows Publish(int layer, const std::byte* kv_rows, const float* q_pre_rope) = 0;
  // As DecodeKv has it. Of each layer it holds the positions that have gone through that layer.
  virtual float* State() const { return nullptr; }
};

// Where residuals of a prompt lie between two layers, [num_tokens, hidden_size] f32: a place in the memory of each of
// the devices that hold the model together, with the same content; on a CPU one in host memory.
using ResidualPlaces = std::span<float* const>;

// The forward pass of a model, on whatever computes it. Used by one thread.
//
// A layer is one with keys and values, numbered through without the others: layers of a hybrid model that keep a state
// belong to the next layer with rows behind them, and those behind the last one to that.
class Forward {
 public:
  virtual ~Forward() = default;

  // One position of each of `token_ids.size()` (<= kMaxDecodeRows) sequences. Returns logits [num_rows, vocab_size] in
  // host memory, overwritten by the next call.
  virtual std::span<float> DecodeByLayer(std::span<const uint32_t> token_ids, std::span<const uint32_t> positions,
                                         DecodeKv& kv) = 0;

  // A chunk of one prompt. `last`: it is the prompt's last token, alone; returns its logits, otherwise nothing.
  virtual std::span<float> Prefill(std::span<const uint32_t> token_ids, uint32_t first_position, bool last,
                                   PrefillKv& kv) = 0;

  // Prefill layer by layer, with the same bits as Prefill cut at the same positions.
  //
  // True where a chunk, too, is best computed in pieces of one layer, so that others need not wait for its end.
  virtual bool CutsChunksByLayer() const { return false; }
  // The residuals of tokens before the first layer, through which PrefillLayer takes them next.
  virtual void EmbedPrompt(std::span<const uint32_t> token_ids, ResidualPlaces hidden) = 0;
  // Positions [first_position, first_position + num_tokens) of a prompt through one layer, after the ones before them:
  // `hidden` is what enters the layer and becomes what leaves it; of the last layer only that of the `last` token. A
  // device may still compute, and may publish the layer as late as in the next PrefillLayer, PromptLogits or
  // SettlePrompt: `kv` and the prompt's place have to be there until then.
  virtual void PrefillLayer(int layer, uint32_t first_position, int num_tokens, bool last, ResidualPlaces hidden,
                            PrefillKv& kv) = 0;

  // PrefillLayer in two halves, between which anything may be computed, for prompts of which other processes attend to
  // the first rows: where this is true, which takes a model on one device whose residuals the host reads.
  virtual bool CutsLayersAtAttention() const { return false; }
  // The first half leaves the rotated queries in `queries` [num_tokens, num_query_heads, head_dim].
  virtual void ProjectPrompt(int /*layer*/, uint32_t /*first_position*/, int /*num_tokens*/, bool /*last*/,
                             const float* /*hidden*/, PrefillKv& /*kv*/, float* /*queries*/) {}
  // The second goes on from `state` after rows [0, first_key), as PrefillAttentionParams has them, and reads the rows
  // from there on.
  struct PromptAttention {
    const float* queries = nullptr;
    PrefillKv::Rows rows;
    uint32_t first_key = 0;
    const float* state = nullptr;
  };
  virtual void AttendPrompt(int /*layer*/, uint32_t /*first_position*/, int /*num_tokens*/, bool /*last*/,
                            const PromptAttention& /*attention*/, float* /*hidden*/) {}
  // Logits of the prompt's last token, whose residual has left the last layer.
  virtual std::span<float> PromptLogits(ResidualPlaces hidden) = 0;
  // Returns when what PrefillLayer was given is computed and published.
  virtual void SettlePrompt() {}

  // Prompts beside steps of a StepClient on the same device: true where what is enqueued for a prompt leaves room for
  // steps that go on meanwhile.
  virtual bool RunsBesideSteps() const { return false; }
  // From now on prompts leave that room, and while the calls above wait for the device they call `meanwhile` again and
  // again, at least once each time, which launches steps and takes their results and may not call this pass. Null:
  // prompts have the whole device again. Between two pieces of prompts that are settled.
  virtual void RunBesideSteps(std::function<void()> /*meanwhile*/) {}

  // True when it can choose tokens itself, which spares moving logits to the host and sorting them there.
  virtual bool DrawsTokens() const { return false; }
  // For the next Decode, Prefill or PromptLogits: rows with an entry get their token from drawn_token(), and no logits.
  // The caller's rows are as many as the call's. Only where DrawsTokens().
  virtual void PlanDraws(std::span<const std::optional<TokenDraw>> /*rows*/) {}
  virtual uint32_t drawn_token(int /*row*/) const { return 0; }

  virtual const RopeTable& rope() const = 0;
  virtual float attention_scale() const = 0;
  // See ModelConfig; GPUs refuse models that have one.
  virtual float attention_softcap() const { return 0; }

  // Not OK once the device has failed for good: what the calls above returned since is worthless, and the process has
  // to end.
  virtual absl::Status status() const { return absl::OkStatus(); }
};

}  // namespace winnow
