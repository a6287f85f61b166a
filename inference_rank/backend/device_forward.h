#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/model/rope.h"
#include "inference_rank/backend/device_row_mover.h"
#include "inference_rank/backend/publish_stages.h"
#include "inference_rank/backend/shard_sums.h"
#include "inference_rank/backend/slot_list_packer.h"
#include "model/device/device_layers.h"
#include "model/forward.h"

namespace winnow {

// The forward pass on a GPU, whose KV side works in host memory: of each layer rows, queries, predictions and residual
// come to pinned memory, slot lists and rows of deltas go up. Where a layer's slots come first (DecodeKv), a decode
// step launches attention and what follows up to the next layer's projections before it publishes the layer; otherwise
// the GPU waits for the host. A prefill chunk publishes a layer while the GPU computes the next; where prompts go layer
// by layer a piece is published while the GPU computes the next one. Weights, table and device are borrowed.
//
// Everything is enqueued on one stream, but for prompts beside steps (RunBesideSteps): their kernels have a stream that
// is confined to a part of the multiprocessors. The two streams wait for each other where rows are moved.
//
// Where the weights are a shard, this is one GPU's part of a pass that all of them make together, each on a thread of
// its own (ShardedForward): it reads and writes the slots of its heads, fills in its heads of what is published, and
// adds up with the others. The first one draws.
class DeviceForward final : public Forward {
 public:
  struct Options {
    int max_prefill_tokens = 2048;
    uint32_t max_list_rows = 0;  // of the longest slot list of a decode row
    uint32_t num_slots = 0;
    Dtype kv_dtype = Dtype::kBf16;  // or kI8: slots have the scales of rows apart (device::Int8Slots)
    size_t row_bytes = 0;           // as RowLayout has them
    uint32_t decode_list_rows = 1;  // of the longest list of a decode graph that shares the activations
    ShardSums::Boxes boxes = ShardSums::Boxes::kPeerMemory;  // of a shard
  };

  // Device memory beside weights and KV.
  static size_t ActivationBytes(const device::DeviceTable& table, const ModelConfig& config, int num_shards,
                                const Options& options);

  // `slots`: [num_slots] rows, a multiple of kSlotPageTokens, of device memory. `stages` outlives it, and is that of
  // all shards. Of whole weights it is ready; shards are once they are connected.
  static absl::StatusOr<std::unique_ptr<DeviceForward>> Create(const device::DeviceTable& table, device::Device& device,
                                                               const DeviceWeights& weights, void* slots,
                                                               const PublishStages& stages, const Options& options);
  // The first pass of a shard, which all of them make together; of whole weights it has been made.
  absl::Status WarmUp();
  // Null where the weights are whole.
  ShardSums* sums() { return sums_.get(); }

  std::span<float> DecodeByLayer(std::span<const uint32_t> token_ids, std::span<const uint32_t> positions,
                                 DecodeKv& kv) override;
  std::span<float> Prefill(std::span<const uint32_t> token_ids, uint32_t first_position, bool last,
                           PrefillKv& kv) override;
  void EmbedPrompt(std::span<const uint32_t> token_ids, ResidualPlaces hidden) override;
  // Of a shard: publishes at once, as the others have to be met for that.
  void PrefillLayer(int layer, uint32_t first_position, int num_tokens, bool last, ResidualPlaces hidden,
                    PrefillKv& kv) override;
  std::span<float> PromptLogits(ResidualPlaces hidden) override;
  void SettlePrompt() override;
  bool RunsBesideSteps() const override { return confined_stream_.has_value(); }
  void RunBesideSteps(std::function<void()> meanwhile) override;
  bool DrawsTokens() const override { return true; }
  void PlanDraws(std::span<const std::optional<TokenDraw>> rows) override { draws_.assign(rows.begin(), rows.end()); }
  uint32_t drawn_token(int row) const override { return host_drawn_[row]; }
  const RopeTable& rope() const override { return rope_; }
  float attention_scale() const override { return scale_; }
  absl::Status status() const override { return status_; }

  RowMover& row_mover() { return *mover_; }
  // Where slots of int8 have what; without codes where rows are of another type.
  device::Int8Slots int8_slots() const;

  // For decode graphs beside it, while it does nothing.
  DeviceLayers& layers() { return *layers_; }
  device::Stream stream() const { return stream_; }
  float* host_logits() { return logits_; }  // pinned, [kMaxDecodeRows, vocab_size]
  // Rows that have been written are in their slots before what is enqueued on `stream` from now on.
  void FlushMoves(device::Stream stream);
  // What is moved from now on waits for what has been enqueued on `stream`, which may use slots that are given away.
  void HoldMovesBehind(device::Stream stream);
  // What it does in between, for a post-mortem; and that the device has failed there.
  void NoteGraph(int num_rows);
  void NoteFailure(const absl::Status& status) { Take(status); }
  size_t pinned_bytes() const { return pinned_->bytes() + mover_->pinned_bytes(); }
  // What was done last, for a post-mortem: "decode of 3 rows, waiting for the rows of layer 5; attention of layer 4 and
  // what came before it had been launched".
  std::string LastWork() const;

 private:
  // What a layer of a decode step publishes is in a PublishStages::Decode, and what its attention reads in pinned
  // memory here; two of them, so that one is filled while the other is in use.
  struct DecodeStage {
    device::AttentionList* lists = nullptr;  // [kMaxDecodeRows, num_query_heads]
    uint32_t* selected = nullptr;            // [max_selected]
    std::unique_ptr<SlotListPacker> packer;  // over the two
    std::unique_ptr<device::Event> projected;
    uint64_t moves_before = 0;  // launched before it was recorded
  };

  DeviceForward(const device::DeviceTable& table, device::Device* device, const ModelConfig& config, WeightShard shard,
                const PublishStages* stages, const Options& options);
  size_t CarveDevice(void* region);
  size_t CarvePinned(void* region);
  device::DecodeAttentionParams AttentionParams(const AttentionLaunch& launch) const;
  size_t AttentionScratchBytes() const;
  HeadRange kv_heads() const { return {shard_.index * config_.num_kv_heads, config_.num_kv_heads}; }
  HeadRange query_heads() const { return {shard_.index * config_.num_query_heads, config_.num_query_heads}; }
  // What the rotation writes of this GPU's heads to `kv_rows` and `q_pre_rope` of a stage.
  RopeOutputs Published(std::byte* kv_rows, float* q_pre_rope) const;

  // With what writes rows of a decode step to their places in slots.
  RopeOutputs ToSlots(RopeOutputs outputs, void* const* places) const;

  void UploadTokens(device::Stream stream, std::span<const uint32_t> token_ids);
  // Of one layer of a decode step. Those that return bool return false when the device has failed.
  void EnqueueProjections(int layer, int num_rows, const DecodeKv& kv);
  bool PublishLayer(int layer, DecodeKv& kv);
  bool SlotsWereFirst(int layer, DecodeKv& kv);
  bool AttendLayer(int layer, int num_rows, DecodeKv& kv);
  bool Attend(DecodeStage& stage, int layer, int num_rows);
  bool AttendF32(DecodeStage& stage, int layer, int num_rows);
  void LaunchAttention(const DecodeStage& stage, int layer, bool to_f32);
  bool CorrectByPartials(DecodeStage& stage, int layer, int num_rows, std::span<const PartialAttention> partials);
  void UploadPlaces(int num_rows, const DecodeKv& kv);
  // Draws the tokens that were planned and fetches the logits of the other rows.
  std::span<float> TakeLogits(device::Stream stream, int num_rows);
  // A piece of a prompt that goes through a layer; `kv` is null when there is none.
  struct Piece {
    PrefillKv* kv = nullptr;
    int layer = 0;
    uint32_t first_position = 0;
    int num_tokens = 0;
    bool last = false;
    int stage = 0;            // which of two
    bool all_layers = false;  // in a row
  };
  void EnqueuePiece(const Piece& piece);
  // Once its rows and queries have come to host memory, or its rows to where they are pushed.
  bool PublishPiece(const Piece& piece);
  bool PublishUnpublished();
  // Moves that were noted come before the piece that is enqueued next, wherever that runs.
  void FlushMovesBeforePiece();
  // Moves that are launched from now on come behind pieces that go layer by layer, whose places they read.
  void HoldMovesBehindPieces();

  // Waits for the stream, stream_ or the prompts'; false, with status_ set, when the device has failed.
  bool Wait(const char* what) { return Wait(what, stream_); }
  bool Wait(const char* what, device::Stream stream);
  // Until what was recorded has ended; meanwhile steps go on.
  bool Await(device::Event& event);
  bool Take(const absl::Status& status);
  void At(const char* doing, int layer);

  const device::DeviceTable& table_;
  device::Device* const device_;  // null only to count
  const ModelConfig config_;      // of the weights' shard
  const WeightShard shard_;
  const PublishStages* const stages_;  // null only to count
  const Options options_;
  const RopeTable rope_;
  const float scale_;
  std::unique_ptr<DeviceLayers> layers_;
  std::unique_ptr<ShardSums> sums_;
  std::unique_ptr<DeviceRowMover> mover_;
  std::unique_ptr<device::Event> flushed_, settled_, held_;
  device::Stream stream_ = nullptr;
  std::optional<device::Stream> confined_stream_;  // nullopt: the device has none
  device::Stream prompt_stream_ = nullptr;         // one of the two
  std::function<void()> meanwhile_;                // beside steps
  bool moves_since_piece_ = false;                 // moves were launched that no confined piece waits for
  uint64_t moves_before_piece_ = 0;                // so many were launched that it waits for
  device::Stream copy_stream_ = nullptr;           // of a chunk's rows on their way out
  void* slots_ = nullptr;
  std::unique_ptr<device::DeviceMemory> memory_, pinned_;

  // Device memory.
  uint32_t* token_ids_ = nullptr;           // [rows]
  uint32_t* positions_ = nullptr;           // [rows]
  void** kv_destinations_ = nullptr;        // [prefill rows, num_kv_heads]
  void** places_ = nullptr;                 // [num_layers, num_rows, num_kv_heads] of the decode step's rows
  float* chunk_queries_ = nullptr;          // [prefill rows, num_query_heads, head_dim]
  uint32_t* pages_ = nullptr;               // [num_slots / kSlotPageTokens] page i is i
  device::AttentionList* lists_ = nullptr;  // [kMaxDecodeRows, num_query_heads]
  uint32_t* selected_ = nullptr;            // [max_selected]
  float* attention_f32_ = nullptr;          // [kMaxDecodeRows, num_query_heads, head_dim]
  float* lse_ = nullptr;                    // [kMaxDecodeRows, num_query_heads]
  void* attention_scratch_ = nullptr;
  device::SampleRow* draw_rows_ = nullptr;  // [kMaxDecodeRows]
  uint32_t* drawn_ = nullptr;               // [kMaxDecodeRows]

  // Pinned memory, which the device reads and writes too.
  uint32_t* host_token_ids_ = nullptr;
  uint32_t* host_positions_ = nullptr;
  void** host_places_ = nullptr;        // as places_
  float* logits_ = nullptr;             // [kMaxDecodeRows, vocab_size]
  float* host_attention_ = nullptr;     // [kMaxDecodeRows, num_query_heads, head_dim]
  float* host_lse_ = nullptr;           // [kMaxDecodeRows, num_query_heads]
  uint16_t* host_corrected_ = nullptr;  // [kMaxDecodeRows, num_query_heads, head_dim] bf16
  device::SampleRow* host_draw_rows_ = nullptr;
  uint32_t* host_drawn_ = nullptr;
  std::array<DecodeStage, 2> decode_stages_;
  // Of pieces of prompts in turn: its rows lie in the prompt's place; its stage is filled, or its rows are pushed.
  std::array<std::unique_ptr<device::Event>, 2> piece_computed_, piece_ready_;
  std::array<bool, 2> piece_is_pushed_{};
  Piece unpublished_;                 // layer by layer: the newest
  bool prompt_is_under_way_ = false;  // pieces were enqueued since the stream was last waited for

  SlotLists slot_lists_;
  std::vector<std::optional<TokenDraw>> draws_;  // of the pass under way; empty: logits of all rows
  absl::Status status_;
  const char* pass_ = "nothing";
  int pass_rows_ = 0;
  int lookahead_ = 0;           // of the decode step under way
  bool may_run_ahead_ = false;  // no layer of it waits for verifications
  const char* doing_ = "";
  int layer_ = 0;
};

}  // namespace winnow
