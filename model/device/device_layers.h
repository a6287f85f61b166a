#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/plugin/device_table.h"
#include "model/device/device_experts.h"
#include "model/weights/device_weights.h"

namespace winnow {

// Rows that a decode step computes at most.
inline constexpr int kMaxGraphRows = 64;

// Two ways through the same layers: few rows, each with bits of its own whatever the others are, or a chunk of a prompt
// on the way to the highest rate.
enum class DevicePhase : uint8_t { kDecode, kPrefill };

// What the rotation of a layer leaves, beside the rotated queries that its attention reads. All device memory, of this
// GPU or a peer's; null where it is not wanted.
struct RopeOutputs {
  const uint32_t* positions = nullptr;     // [num_rows]; required
  Dtype kv_dtype = Dtype::kBf16;           // of the rows: kBf16 or kI8
  void* const* kv_destinations = nullptr;  // [num_rows, num_kv_heads] where the rows' K and V go
  float* slot_scales = nullptr;            // as those of device::RopeAppendParams, and slot_pool
  const void* slot_pool = nullptr;
  void* kv_copy = nullptr;              // [num_rows, num_kv_heads] rows
  int64_t kv_copy_stride = 0;           // bytes from row to row; 0: no gaps
  float* q_pre_rope = nullptr;          // [num_rows, num_query_heads, head_dim]
  int64_t q_pre_rope_stride = 0;        // floats from row to row; 0: no gaps
  void* const* copy_regions = nullptr;  // as those of device::RopeAppendParams
};

// Where attention of decode rows finds K and V.
struct DecodeKvView {
  const void* slot_pool = nullptr;
  Dtype dtype = Dtype::kBf16;
  const void* scales = nullptr;            // [num_slots][2] f32, not for kBf16
  device::AttentionList* lists = nullptr;  // [num_rows, num_kv_heads, lists_per_kv_head] of the layer
  int lists_per_kv_head = 1;               // 1, or one for each query head
  const uint32_t* pages = nullptr;
  const uint32_t* selected = nullptr;
  uint32_t max_count = 0;                       // at most DeviceLayerOptions::max_list_rows
  bool settled = false;                         // as DecodeAttentionParams::settled
  device::RemoteFlagsParams remote_flags = {};  // as that and `sends` of DecodeAttentionParams
  device::SendRowsParams sends = {};
  // Set: rows attend to what the model's own indexer chooses, so many positions each ([num_rows] device; 0, or no more
  // positions than that: to everything). Lists hold every row by position, and are changed to name the chosen ones.
  const uint32_t* index_budgets = nullptr;
  const uint32_t* positions = nullptr;  // [num_rows] device, with those
};

// Where attention of a chunk finds K and V by position.
struct ChunkKvView {
  const void* rows = nullptr;  // [num_kv_heads] x head_stride rows, bf16 or int8 as the layers' kv_dtype
  int64_t head_stride = 0;
  uint32_t first_position = 0;
  const uint32_t* streaming_window = nullptr;  // [num_kv_heads]; may be null
  uint32_t streaming_sinks = 0;
};

// Which tokens rows of a step may draw.
struct TokenMasks {
  const uint64_t* words = nullptr;  // device, [num_rows][WordsPerRow]: bit i % 64 of word i / 64 is token i's
  uint64_t rows = 0;                // bit i: row i draws from its mask, the others from all tokens
  static int WordsPerRow(int vocab_size) { return (vocab_size + 63) / 64; }
};

struct DeviceLayerOptions {
  int max_decode_rows = kMaxGraphRows;
  int max_prefill_rows = 0;         // of a chunk; 0: decode only
  bool partial_chunks = false;      // of a shard: chunks leave their terms in partial(), too
  uint32_t max_list_rows = 131072;  // longest attention list of a decode row
  Dtype kv_dtype = Dtype::kBf16;    // of slots and, where it is kI8, of rows of chunks
  // Of the longest prompt that chunks of int8 rows, or of a model with an indexer, belong to.
  uint32_t max_prompt_tokens = 0;
  int lists_per_kv_head = 1;  // that decode rows may have, beside one
};

// A sum over shards in a decode step, as kernels/device/params/all_reduce_terms.h has it.
struct DecodeSum {
  device::TermPlaces places = {};  // where this shard's term goes
  float* terms = nullptr;          // with this shard: [shards] x term_stride
  int64_t term_stride = 0;
  const uint32_t* abort = nullptr;
  uint32_t* error = nullptr;
  uint32_t timeout_us = 0;
};

// Where the weights are a shard: adds up over all shards.
class PartialSums {
 public:
  virtual ~PartialSums() = default;
  // Of a chunk, each of whose rows one shard owns and adds up: what all have left in partial(), into its row of
  // hidden(). With a weight, normed() of all rows follows, with all shards.
  virtual void AddChunk(device::Stream stream, int num_rows, const float* norm_weight) = 0;
  // normed() of all rows of a chunk, with all shards, from their owners' hidden().
  virtual void NormChunk(device::Stream stream, int num_rows, const float* weight) = 0;
  // Whether every shard owns every row of the chunk.
  virtual bool AllOwnAllRows() const = 0;
  // Of decode rows: the next sum, for the caller to enqueue.
  virtual DecodeSum NextDecodeSum() = 0;
};

// Enqueues the parts of a forward pass on a stream, for up to 64 decode rows or a chunk of a prompt. Pure launches,
// which may be captured: nothing waits, nothing allocates. Holds the activations, so that the calls of one step build
// on each other in the order of the model: Embed, then for each layer ProjectQkv, Rope, Attend, OutputAndMlp, last
// Logits and Sample. The residual stream is f32; what enters a matrix is bf16. Weights and device are borrowed.
class DeviceLayers {
 public:
  static size_t ActivationBytes(const device::DeviceTable& table, const ModelConfig& config,
                                const DeviceLayerOptions& options);
  static absl::StatusOr<std::unique_ptr<DeviceLayers>> Create(const device::DeviceTable& table, device::Device& device,
                                                              const DeviceWeights& weights,
                                                              const DeviceLayerOptions& options);

  void Embed(device::Stream stream, const uint32_t* token_ids, int num_rows);
  // `sums`: of a shard's chunk.
  void ProjectQkv(device::Stream stream, DevicePhase phase, int layer, int num_rows, PartialSums* sums = nullptr);
  void Rope(device::Stream stream, DevicePhase phase, int layer, int num_rows, const RopeOutputs& outputs);
  void Attend(device::Stream stream, int layer, int num_rows, const DecodeKvView& kv);
  void AttendChunk(device::Stream stream, int layer, int num_rows, const ChunkKvView& kv);
  // `sums`: of a shard; null where the weights are whole. `norms_next`: of a shard's chunk that goes through the next
  // layer now, where Qkv then takes the place of ProjectQkv.
  void OutputAndMlp(device::Stream stream, DevicePhase phase, int layer, int num_rows, PartialSums* sums = nullptr,
                    bool norms_next = false);
  void Logits(device::Stream stream, int num_rows);
  void Sample(device::Stream stream, int num_rows, const device::SampleRow* rows, uint32_t* token_ids, float* logprobs,
              const TokenMasks& masks = {});

  // The steps of which ProjectQkv, OutputAndMlp and Logits consist, for who times them one by one.
  void InputNorm(device::Stream stream, int layer, int num_rows);
  void Qkv(device::Stream stream, DevicePhase phase, int layer, int num_rows);
  void Output(device::Stream stream, DevicePhase phase, int layer, int num_rows, const DecodeSum* sum = nullptr);
  void MlpNorm(device::Stream stream, int layer, int num_rows);
  // Of a sparse layer the routing, too: rows with kNoPosition among `positions` (device, may be null) go to no expert.
  void GateUp(device::Stream stream, DevicePhase phase, int layer, int num_rows, const uint32_t* positions = nullptr);
  // Nothing in a sparse layer, whose experts have done it.
  void GatedMul(device::Stream stream, DevicePhase phase, int layer, int num_rows);
  void Down(device::Stream stream, DevicePhase phase, int layer, int num_rows, const DecodeSum* sum = nullptr);
  // Behind Output or Down of a decode step with a sum: that and the norm that follows, of the MLP, or of the next layer
  // or the logits.
  void AddOutput(device::Stream stream, int layer, int num_rows, const DecodeSum& sum);
  void AddDown(device::Stream stream, int layer, int num_rows, const DecodeSum& sum);
  void FinalNorm(device::Stream stream, int num_rows);
  void LmHead(device::Stream stream, int num_rows);

  // [rows, hidden_size] residual stream: in the activations, or where UseHidden says.
  float* hidden() const { return hidden_; }
  // What is enqueued from now on reads and writes the residuals of its rows there: 256-byte aligned device memory.
  // Null: in the activations again. Not around work that is captured and launched later.
  void UseHidden(float* hidden) { hidden_ = hidden != nullptr ? hidden : own_hidden_; }
  void* normed() const { return normed_; }        // [rows, hidden_size] bf16, what Qkv and GateUp read
  const float* q() const { return q_; }           // [decode rows, num_query_heads, head_dim] rotated
  float* partial() const { return partial_; }     // [rows, hidden_size] of a shard's chunk, see is_shard
  void* attention() const { return attention_; }  // [rows, num_query_heads, head_dim] bf16, what Output begins with
  // Of the layer that was projected last, what the model's indexer scores with: [rows, KvLayout::index_query_floats].
  const float* index_queries() const { return index_.queries; }
  float* logits() const { return logits_; }  // [decode rows, vocab_size]
  // Device memory: the experts that sparse layers have touched so far, added up; null where there are none.
  const uint64_t* touched_experts() const { return experts_->touched(); }
  // The weights are one part of several: Output and Down write their term of the residual to a DecodeSum's places
  // or, of chunks (only where partial_chunks) and where nothing is added up, to partial(). LmHead fills its part of the
  // logits.
  bool is_shard() const { return weights_ != nullptr && weights_->shard().count > 1; }
  const ModelConfig& config() const { return config_; }
  const DeviceWeights& weights() const { return *weights_; }
  const device::DeviceTable& table() const { return table_; }

 private:
  DeviceLayers(const device::DeviceTable& table, const ModelConfig& config, const DeviceWeights* weights,
               const DeviceLayerOptions& options);
  size_t Carve(void* region);
  device::DecodeAttentionParams AttentionParams(int num_rows, uint32_t max_count, int lists_per_kv_head) const;
  size_t AttentionScratchBytes() const;
  // What attention of chunks reads of rows of int8, by position; zero elsewhere.
  int64_t wide_rows_stride() const;
  // ProjectedFeatures, so that rows are aligned to 16 bytes.
  int64_t qkv_stride() const { return (int64_t{ProjectedFeatures(config_)} + 3) / 4 * 4; }
  // Of lists of at most max_count rows, what the layer's sliding window leaves.
  uint32_t LongestList(int layer, uint32_t max_count) const;
  struct MatmulOutput {
    void* y;
    int64_t stride;
    Dtype dtype;
    bool accumulate;
    device::TermPlaces term = {};
  };
  void Matmul(device::Stream stream, DevicePhase phase, const device::DeviceMatrix& weight, const void* x, int num_rows,
              const MatmulOutput& output);
  MatmulOutput ResidualSum(const DecodeSum* sum) const;
  void AddTerms(device::Stream stream, int num_rows, const DecodeSum& sum, const float* norm_weight);
  void Norm(device::Stream stream, const float* weight, int num_rows, const float* bias = nullptr);
  // Of layers with norms after attention and MLP: hidden() += norm of what the product has left in partial().
  void AddNormed(device::Stream stream, const float* weight, int num_rows);
  // Of latent attention, what Rope does: queries of latents and what turns of them, rows. And before Output: what heads
  // make of the latents that they attended to.
  void ProjectLatents(device::Stream stream, DevicePhase phase, int layer, int num_rows, const RopeOutputs& outputs);
  void LatentValues(device::Stream stream, DevicePhase phase, int layer, int num_rows);
  // Of a model with an indexer. What rows of decode steps attend to, into their lists; and of a chunk the queries that
  // have more positions than the indexer chooses; returns how many come before them, which attend to everything.
  // `all`: attention of the chunk to everything.
  void SelectRows(device::Stream stream, int num_rows, const DecodeKvView& kv);
  int AttendToChosen(device::Stream stream, const device::PrefillAttentionParams& all);
  void SelectByIndexer(device::Stream stream, device::IndexScoreParams score);
  void CarveIndex(size_t rows, device::Arena& arena);
  int64_t index_stride() const;
  // Of models that normalise whole projections of queries and keys, in place.
  void NormProjections(device::Stream stream, const DeviceLayerWeights& weights, int num_rows);
  bool has_post_norms() const { return config_.norms != NormPlacement::kBefore; }
  // What a layer with a sliding window rotates with, or the others.
  struct Rotation {
    float* inv_freq = nullptr;  // [head_dim / 2]
    float attention_factor = 1;
  };
  const Rotation& RotationOf(int layer) const { return rotations_[config_.window(layer) > 0 ? 1 : 0]; }
  // Chunks store gate and up as bf16: at their size the traffic counts.
  Dtype GateUpDtype(DevicePhase phase) const { return phase == DevicePhase::kDecode ? Dtype::kF32 : Dtype::kBf16; }

  const device::DeviceTable& table_;
  const ModelConfig config_;      // of the weights' shard
  const DeviceWeights* weights_;  // null only to count
  const DeviceLayerOptions options_;
  const float scale_;
  std::unique_ptr<device::DeviceMemory> memory_;
  std::unique_ptr<device::PrefillPlans> plans_;

  std::array<Rotation, 2> rotations_;
  float* own_hidden_ = nullptr;  // [rows, hidden_size]
  float* hidden_ = nullptr;      // own_hidden_, or whose residuals are under way
  float* partial_ = nullptr;     // [decode rows, or rows, hidden_size]
  void* normed_ = nullptr;       // [rows, hidden_size] bf16
  float* qkv_ = nullptr;         // [rows, qkv_stride()]
  float* q_ = nullptr;           // [decode rows, q_features]
  void* q_bf16_ = nullptr;       // [prefill rows, q_features]
  void* attention_ = nullptr;    // [rows, q_features] bf16
  // Of latent attention.
  struct LatentActivations {
    void* query_latents = nullptr;  // [rows, query_rank] bf16, normed; null where queries have none
    float* heads = nullptr;         // [rows, QueryUpFeatures]; null likewise, as qkv has them
    void* nope = nullptr;           // [rows, num_query_heads, nope_dim] bf16
    void* values = nullptr;         // [rows, o_features] bf16
    float key_attention_factor = 1;
  };
  LatentActivations latent_;
  // Of the model's own indexer, for so many queries at a time.
  static constexpr int kIndexRows = kMaxGraphRows;
  struct IndexActivations {
    float* queries = nullptr;                     // [rows, index_query_floats]
    float* scores = nullptr;                      // [kIndexRows, index_stride()]
    device::SelectionList* selections = nullptr;  // [kIndexRows]
    uint32_t* selected = nullptr;                 // [kIndexRows, top_k]
    uint32_t* counts = nullptr;                   // [kIndexRows]
  };
  IndexActivations index_;
  void* gate_up_ = nullptr;  // [rows, 2 * intermediate_size] GateUpDtype, of dense layers
  void* mlp_ = nullptr;      // [rows, intermediate_size] bf16, likewise
  std::optional<DeviceExperts> experts_;
  float* logits_ = nullptr;  // [decode rows, vocab_size]
  void* matmul_scratch_ = nullptr;
  void* prefill_workspace_ = nullptr;
  void* attention_scratch_ = nullptr;
  void* wide_rows_ = nullptr;     // [num_kv_heads, wide_rows_stride(), 2 * head_dim] bf16, of int8
  float* wide_scales_ = nullptr;  // [2, num_kv_heads, wide_rows_stride()] of keys, of values
  void* sample_scratch_ = nullptr;
};

}  // namespace winnow
