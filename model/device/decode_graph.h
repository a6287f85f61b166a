#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/plugin/device_table.h"
#include "model/device/decode_slots.h"
#include "model/device/device_layers.h"
#include "model/device/tensor_parallel.h"

namespace winnow {

enum class DecodeMode : uint8_t {
  kDense,          // every row, from slots of its own
  kFixed,          // sinks, recent window and a selection that never changes and costs nothing
  kColocated,      // a cache rank on the same GPU selects in between
  kDisaggregated,  // a cache rank on another GPU selects beside
};

// Parts of a step, to be left out where their time is wanted.
enum class DecodePart : uint8_t {
  kEmbed,
  kInputNorm,
  kQkv,
  kRope,
  kAttention,
  kOutput,
  kMlpNorm,
  kGateUp,
  kSilu,
  kDown,
  kFinalNorm,
  kLmHead,
  kSample,
  kAllReduce,  // of a tensor-parallel group
  kExchange,   // publishing, waiting, colocated selection
};
inline constexpr int kNumDecodeParts = 15;
const char* DecodePartName(DecodePart part);
// A set of parts.
class DecodeParts {
 public:
  static DecodeParts None() { return DecodeParts(0); }
  static DecodeParts All() { return DecodeParts((1u << kNumDecodeParts) - 1); }
  static DecodeParts Only(DecodePart part) { return DecodeParts(1u << static_cast<int>(part)); }
  DecodeParts With(DecodePart part) const { return DecodeParts(bits_ | Only(part).bits_); }
  DecodeParts Without(DecodePart part) const { return DecodeParts(bits_ & ~Only(part).bits_); }
  bool Has(DecodePart part) const { return (bits_ & Only(part).bits_) != 0; }

 private:
  explicit DecodeParts(uint32_t bits) : bits_(bits) {}
  uint32_t bits_;
};

// A cache rank on the same GPU, whose work becomes part of the step's graph, in the step's stream. Called while
// capturing, in layer order; what it enqueues reads the inbox that the step has filled.
class ColocatedCache {
 public:
  virtual ~ColocatedCache() = default;
  virtual void BeginPlan(device::Stream stream) = 0;
  // hidden[layer] is in the inbox once `stream`, another one, has come so far.
  virtual void OnHidden(device::Stream stream, int layer) = 0;
  // rows[layer] and queries[layer] are in the inbox. Behind what this enqueues, what attention of `layer` reads is in
  // the slots and lists.
  virtual void OnRows(int layer) = 0;
  virtual void EndPlan() = 0;
};

struct DecodeGraphOptions {
  DecodeMode mode = DecodeMode::kDense;
  device::RecentWindow window = device::RecentWindow::kSliding;
  // kColocated and kDisaggregated: the inbox of the cache rank that all rows belong to; {}: EnqueueInputs says whose
  // they are. Layers whose residual it wants (kDisaggregated: of the layers whose flag it waits for).
  device::CacheInbox inbox = {};
  int hidden_layers = 0;  // of so many layers, from the first, the residual entering them is sent
  // The cache rank's kernels may run on this GPU too: what waits takes no multiprocessors from them.
  bool shares_gpu = false;
  ColocatedCache* cache = nullptr;  // kColocated, of the variants that name no other
  TensorParallelGroup group = {};
  uint32_t wait_timeout_us = 1000000;
  uint32_t token_log_steps = 1024;
  // Where the steps run; null: on a stream of the graph's own.
  device::Stream stream = nullptr;
  // kDense, and kColocated over rows in place, with slots of bf16 or int8: device memory that the K and V of a step's
  // rows go to as well, [max_rows][num_layers][num_kv_heads] rows. Null: they go to their slots alone.
  void* row_copies = nullptr;
  // Steps end with their logits, and DrawTokens draws: masks that the host works out meanwhile can still take part.
  bool draws_apart = false;
  bool digests_rows =
      false;  // kDisaggregated: of what is attended to, into the inbox (kernels/device/params/row_digest.h)
};

// What a row of the batch computes next; rows without one compute nothing.
struct DecodeRow {
  uint32_t token_id = 0;
  uint32_t position = 0;  // of token_id
  device::SampleRow sampling = {};
  uint32_t prompt_tokens = 0;  // of the sequence: anchors of kept selections begin there
};

// What a step is captured for, beside the number of its rows: steps of one graph may differ in it.
struct DecodeVariant {
  uint64_t key = 0;                 // tells variants apart
  ColocatedCache* cache = nullptr;  // kColocated: null where nothing is selected for any row
  int hidden_layers = 0;            // as in DecodeGraphOptions
  uint32_t max_list_rows = 0;       // of the longest list that a row may have
  bool indexes = false;             // rows may attend to what the model's own indexer chooses for them
};

// The whole decode step of a batch as one graph per bucket. The state of the step lies on the device and is
// advanced there: consecutive launches decode consecutive positions, the sampled token of one entering the next. Layers
// and slots are borrowed. One thread.
class DecodeGraph {
 public:
  static constexpr std::array<int, 9> kBuckets = {1, 2, 4, 8, 16, 24, 32, 48, 64};
  static int BucketFor(int num_rows);  // the smallest that holds them

  static absl::StatusOr<std::unique_ptr<DecodeGraph>> Create(device::Device& device, DeviceLayers& layers,
                                                             DecodeSlots& slots, const DecodeGraphOptions& options);

  // What the host says of a step, one region of memory.
  struct Inputs {
    uint32_t* token_ids = nullptr;          // [max_rows]
    uint32_t* positions = nullptr;          // [max_rows] device::kNoPosition: none
    device::SampleRow* draws = nullptr;     // [max_rows], token_index one less
    void** inboxes = nullptr;               // [max_rows] ExchangePeer::inbox of the row's cache rank; null: of none
    device::ExchangePeer* peers = nullptr;  // [kMaxExchangePeers] the cache ranks with rows
  };
  static size_t InputBytes(int max_rows);
  static Inputs InputsAt(int max_rows, void* region);

  // The rows of the coming steps, at most the slots' max_rows. Between steps only; waits for the device.
  absl::Status SetRows(std::span<const std::optional<DecodeRow>> rows);
  // The positions and draws of all max_rows rows of the next step and their cache ranks, from pinned memory that stays
  // as it is until the step has ended: enqueued on stream(). A row whose token is not said goes on with what it drew.
  void EnqueueInputs(const Inputs& pinned);
  void EnqueueToken(int row, const Inputs& pinned);
  // The same for one row alone: the token, position and draw at its place in `pinned`.
  void EnqueueRow(int row, const Inputs& pinned);
  // What the row attends to from the next step on, in place of what the slots' shape says. Read before this returns.
  void EnqueueWindow(int row, const device::RowWindow& window);
  // In steps whose variant `indexes`, of a model that brings an indexer: the row attends to so many positions that it
  // chooses, once there are more; 0: to everything, as at first.
  void EnqueueIndexBudget(int row, uint32_t budget);
  // A graph of one step for the first `bucket` rows, of the parts given.
  absl::StatusOr<std::unique_ptr<device::Graph>> Capture(int bucket, DecodeParts parts = DecodeParts::All()) {
    return Capture(bucket, parts, Default());
  }
  // Captures the graph of so many rows, if that has not been done: GPUs that wait for each other need all their graphs
  // before the first is launched.
  absl::Status Prepare(int num_rows) { return Prepare(num_rows, Default()); }
  absl::Status Prepare(int num_rows, const DecodeVariant& variant);
  // Enqueues one step for the first `num_rows` rows, on stream(); captures its bucket's graph the first time.
  absl::Status Step(int num_rows) { return Step(num_rows, Default()); }
  absl::Status Step(int num_rows, const DecodeVariant& variant);
  // With draws_apart: draws the tokens of the step enqueued last, for as many rows, which enter the next step.
  // Enqueued.
  void DrawTokens(int num_rows, const TokenMasks& masks);
  // Forgets the graphs of variants whose key has one of these bits. None of them may be under way.
  void ForgetVariants(uint64_t bits);

  // Tokens that entered the last `steps` steps, [steps][max_rows], oldest first. Waits for the device.
  absl::StatusOr<std::vector<uint32_t>> TokensOfLastSteps(uint32_t steps);
  // The tokens that enter the next step, and the logits of the last one, [num_rows, vocab_size]. Wait for the device.
  absl::StatusOr<std::vector<uint32_t>> NextTokens();
  absl::StatusOr<std::vector<float>> LastLogits(int num_rows);
  // OK while no wait has timed out or been aborted, but for those for peers that EnqueueInputs has named.
  absl::Status WaitError();
  // Ends those waits of steps that are under way, and of all later ones. Any thread.
  void Abort();

  device::Stream stream() const { return stream_; }
  const uint32_t* plan() const { return state_.plan; }                   // device word: number of the step, from 1
  const uint32_t* next_tokens() const { return state_.next.token_ids; }  // device memory, [max_rows]
  const uint32_t* positions() const { return state_.positions; }         // the same, of the step under way

 private:
  // Device memory of the step's state.
  struct State {
    uint32_t* plan = nullptr;
    Inputs next;                           // of the step that comes
    uint32_t* positions = nullptr;         // [max_rows]
    device::RowWindow* windows = nullptr;  // [max_rows]
    uint32_t* index_budgets = nullptr;     // [max_rows]
    uint32_t* layer_windows = nullptr;     // [num_layers] sliding windows; null where no layer has one
    float* logprobs = nullptr;             // [max_rows]
    uint32_t* token_log = nullptr;         // [token_log_steps][max_rows]
    void** kv_destinations = nullptr;      // [num_layers][max_rows][num_kv_heads]
    uint32_t* kv_slots = nullptr;          // the same as numbers
    uint32_t* arrivals = nullptr;
    uint64_t* digest_sums = nullptr;  // [max_rows][num_kv_heads], as digest_arrivals
    uint32_t* digest_arrivals = nullptr;
    void* bf16_rows = nullptr;    // [max_rows][num_kv_heads][2 * head_dim], where rows are converted
    void* kv_rows = nullptr;      // the same in the slots' dtype
    float* row_scales = nullptr;  // [max_rows * num_kv_heads][2]
  };
  DecodeGraph(device::Device& device, DeviceLayers& layers, DecodeSlots& slots, const DecodeGraphOptions& options);
  size_t Carve(void* region);
  static size_t CarveInputs(int max_rows, void* region, Inputs* inputs);
  absl::Status SetPeer();
  // Of a graph's steps that are not said to be anything else.
  DecodeVariant Default() const {
    return {.cache = options_.cache,
            .hidden_layers = options_.hidden_layers,
            .max_list_rows = slots_.shape().max_list_rows()};
  }
  absl::StatusOr<std::unique_ptr<device::Graph>> Capture(int bucket, DecodeParts parts, const DecodeVariant& variant);
  device::RowWindow WindowOf(uint32_t prompt_tokens) const;
  // What is being captured.
  struct StepShape {
    int num_rows = 0;
    DecodeParts parts = DecodeParts::None();
    DecodeVariant variant;
    bool exchanges = false;  // with what selects
  };
  void EnqueueStep(device::Stream stream, const StepShape& step);
  void EnqueueLayer(device::Stream stream, int layer, const StepShape& step);
  void BeginStep(device::Stream stream, int num_rows);
  device::SendRowsParams HiddenOf(int layer, int num_rows) const;
  DecodeSum SumOf(DecodePart product) const;
  void GatherLogits(device::Stream stream, int num_rows);
  void Rope(device::Stream stream, int layer, const StepShape& step);
  void ExchangeRows(device::Stream stream, int layer, const StepShape& step);
  device::RemoteFlagsParams RemoteFlagsOf(int layer) const;
  // Attention waits for the cache ranks itself.
  bool waits_in_attention() const { return is_remote() && !options_.shares_gpu; }
  void DigestRows(device::Stream stream, int num_rows);
  void Attend(device::Stream stream, int layer, const StepShape& step, bool settled, bool waits);
  bool is_sparse() const { return options_.mode == DecodeMode::kColocated || is_remote(); }
  bool is_remote() const { return options_.mode == DecodeMode::kDisaggregated; }
  Dtype kv_dtype() const { return slots_.shape().layout.dtype; }
  // Rows of fp8 and int4 are made of those of bf16; others are written as they are.
  bool converts_rows() const { return kv_dtype() != Dtype::kBf16 && kv_dtype() != Dtype::kI8; }
  int max_rows() const { return slots_.shape().max_rows; }
  const uint32_t* abort_word() const { return static_cast<const uint32_t*>(words_->data()); }
  uint32_t* error_word() const { return static_cast<uint32_t*>(words_->data()) + 1; }

  device::Device& device_;
  DeviceLayers& layers_;
  DecodeSlots& slots_;
  const device::DeviceTable& table_;
  const ModelConfig& config_;
  const DecodeGraphOptions options_;
  const device::CacheInboxOffsets inbox_;
  const device::Stream stream_;
  const device::Stream side_stream_;  // publishes the residual beside the layer
  const std::unique_ptr<device::Event> fork_, published_;
  std::unique_ptr<device::DeviceMemory> memory_;
  std::unique_ptr<device::DeviceMemory> words_;  // pinned: abort, error
  State state_;
  std::map<std::pair<int, uint64_t>, std::unique_ptr<device::Graph>> graphs_;  // by bucket and variant
};

}  // namespace winnow
