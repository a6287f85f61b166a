#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "common/rpc/retried_calls.h"
#include "inference_rank/engine/failure_run.h"
#include "inference_rank/engine/mailbox.h"
#include "inference_rank/engine/task_pool.h"
#include "inference_rank/links/link_table.h"
#include "inference_rank/links/link_watch.h"
#include "inference_rank/memory/resident_prefixes.h"
#include "inference_rank/memory/slot_pool.h"
#include "inference_rank/metrics.h"
#include "inference_rank/scheduler/inject_controller.h"
#include "inference_rank/scheduler/prefill_work.h"
#include "inference_rank/scheduler/scheduler.h"
#include "inference_rank/sequence/peer_step_group.h"
#include "inference_rank/sequence/prefix_attention.h"
#include "inference_rank/sequence/prefix_times.h"
#include "inference_rank/step/decode_step.h"
#include "inference_rank/step/prefill_step.h"
#include "inference_rank/step/state_sender.h"
#include "inference_rank/step/step_loop.h"
#include "inference_rank/step/steps_under_way.h"
#include "model/forward.h"
#include "transport/transport.h"

namespace winnow {

// The loop of an inference rank, one thread: take in what has come, admit (and preempt where that makes room), compute
// the planned prefill tokens, run one decode step over the planned rows, publish tokens. It is the loop to read first.
//
// Submit, Cancel and CancelAll may be called from any thread. Every submitted sequence ends in exactly one Finished or
// Failed event on its sink, unless its sink cancelled it.
class Engine {
 public:
  struct Options {
    Scheduler::Limits limits;
    // Prefill tokens beside running decodes; 0: as many as a chunk.
    uint32_t max_inject_tokens = 0;
    // The time between a stream's tokens that injected prefill tokens must respect: so many as InjectController finds,
    // up to max_inject_tokens; 0: max_inject_tokens always.
    std::chrono::microseconds tpot_target{0};
    PrefillWork prefill_work;  // of the model
    PrefixAttention prefix_attention = PrefixAttention::kAuto;
    std::string kernel_set;  // Backend::kernel_set: cache ranks with the same one may attend to prefixes
    int num_threads = 0;     // Backend::num_threads
    DataPlaneWaits waits;
    std::chrono::milliseconds control_timeout{5000};  // of one call to a cache rank
    std::chrono::milliseconds open_patience{30000};   // how long a sequence waits for room on its cache rank
    std::vector<uint32_t> eos_token_ids;
    // Called on the engine thread after a prompt that was prefilled layer by layer, with what its KV and residuals
    // took.
    std::function<void(uint32_t prompt_tokens, size_t kv_bytes, size_t residual_bytes)> on_prefilled_by_layer = nullptr;
    // Of a hybrid model: what each sequence keeps in the place of rows (ModelConfig::state_floats).
    size_t state_floats = 0;
    // Where prompts in prefill lie when `forward` computes on a device; null: in host memory.
    PrefillRegion* prefill_region = nullptr;
    // Runs the steps of sequences that attend to everything, over the same slots; null: they go by frames as others do.
    StepClient* step_client = nullptr;
    // Beside a step client: rows of prompts stay in the slots while nobody needs the room (ResidentPrefixes).
    bool keep_prefixes = true;
    // Called once, on the engine thread, when the device has failed for good: every sequence has been failed as
    // retryable, and none will run here any more. The KV of all of them lives on at their cache ranks.
    std::function<void(const absl::Status& why)> on_device_failure = nullptr;
  };

  Engine(Options options, const KvLayout& layout, Forward& forward, SlotPool slots,
         std::unique_ptr<Transport> transport, const LinkTable::Options& link_options, InferenceRankMetrics& metrics);
  ~Engine();

  void Start();
  // Fails what is left (retryable: another rank can attach) and joins the thread.
  void Stop();

  void Submit(std::unique_ptr<Sequence> sequence);
  void Cancel(std::shared_ptr<EventSink> sink, uint64_t request_id);
  void CancelAll(std::shared_ptr<EventSink> sink);
  // Cache ranks that a router has given up for their silence. Any thread.
  void NoteExpired(std::span<const v1::Identity> cache_ranks);
  // UNAVAILABLE where nothing comes of what it is asked for any more. Any thread.
  absl::Status usable() const { return failures_.At(std::chrono::steady_clock::now()); }

 private:
  void Loop();
  bool RunOnEngine(std::function<void()> work);
  void OnFrame(Channel& channel, ReceivedFrame frame);
  void OnWatermarks(CacheLink& link, const ReceivedFrame& frame);
  // The cache rank has refused a frame, or given the sequence up: it is at the header's epoch there; 0: it is not
  // there.
  void OnFenced(const CacheLink& link, Sequence& sequence, const wire::FrameHeader& header);
  void OnPrefetch(CacheLink& link, Sequence& sequence, const ReceivedFrame& frame);
  // Rows of one shard, or the end of them.
  void TakeRefill(Sequence& sequence, const ShardLink& shard, ReceivedFrame frame);
  void OnRefilled(Sequence& sequence);
  void LoadPrefixRows(Sequence& sequence, const ShardLink& shard, ReceivedFrame frame);
  void LoadRefilledRows(Sequence& sequence, const ShardLink& shard, const ReceivedFrame& frame);
  void DistrustLink(CacheLink& link, const absl::Status& why);

  void AdmitWaiting();
  // Lets sequences that are to be forks go on as far as their sources are (engine_forks.cc).
  void ServeForks();
  void ServeFork(Sequence& fork);
  void OpenAlone(Sequence& fork);
  void TakeCurrentTokens(Sequence& fork, const Sequence& source);
  void StartFork(Sequence& fork, Sequence& source);
  void OnForked(Sequence& fork, const absl::StatusOr<ShardCalls::Attached>& forked);
  void LetGoOfSource(Sequence& fork);
  bool HasFollowers(const Sequence& source);
  // Null when it has gone.
  Sequence* SourceOf(const Sequence& fork);

  void StartOpening(Sequence& sequence);
  // What the sequence's rows depend on beside the tokens, and who may share them. Any thread.
  std::string PrefixSaltOf(const Sequence& sequence) const;
  void OnOpened(Sequence& sequence, const absl::StatusOr<ShardCalls::Attached>& opened);
  void OnNotOpened(Sequence& sequence, const absl::Status& why);
  void BeginPrompt(Sequence& sequence, const ShardCalls::Attached& opened, bool attached);
  // Takes the rows that the prefix caches have, from slots or from there: of the layer under way where it goes layer by
  // layer, else all.
  void PullPrefix(Sequence& sequence);
  // Asks the cache ranks for rows of the sequence.
  void PullRows(const Sequence& sequence, int first_layer, int num_layers, const ShardCalls::PrefixRows& rows);

  // Rows that stay in slots (engine_resident.cc). Whether the sequence's may.
  bool MayShareRows(const Sequence& sequence) const;
  // Gives it its working set, with what is resident of its rows.
  absl::Status TakeSlots(Sequence& sequence);
  // Where so many of them go, once what is idle has made room; nullopt: wherever they are free.
  std::optional<SlotPlacement> PlaceSlots(uint32_t pages, const ResidentPrefixes::Lease& prefix,
                                          const SlotPlacement& spread);
  // Which index of keys it has beside its slots, as StepClient::IndexOf.
  uint32_t IndexOf(const Sequence& sequence) const;
  // What of its rows may be resident: nullopt: none may. `tokens` holds the key's.
  std::optional<ResidentPrefixes::Key> ResidentKey(const Sequence& sequence, std::vector<uint32_t>& tokens) const;
  ResidentPrefixes::Lease FindResident(const Sequence& sequence);
  bool MayShare(const WorkingSet& set, const ResidentPrefixes::Lease& rows) const;
  // Its first rows are from now on those that are resident, where another one has brought them meanwhile.
  void ShareResident(Sequence& sequence);
  // Its rows below `end` stay for others, and, behind the prompt, for itself.
  void KeepRows(Sequence& sequence, uint32_t end);
  // Rows of a preempted sequence that it does not compute again.
  uint32_t KeptEnd(const Sequence& sequence) const;
  // Of its cached prefix, positions whose rows are in its slots.
  uint32_t ResidentPrefixEnd(const Sequence& sequence) const;
  void CountResident(uint32_t positions);
  // One that was preempted, or begins as a fork, and is attached: its slots are filled with what is not resident.
  void RefillInPlace(Sequence& sequence);
  // Of the slot pages that a waiting sequence needs, those that running ones have.
  uint32_t SharedPages(const Sequence& sequence) const;
  uint32_t IdlePages(SlotPlace place) const { return prefixes_.has_value() ? prefixes_->idle_pages(place) : 0; }
  uint32_t FreeSlotPages(SlotPlace place) const { return slots_.free_pages(place) + IdlePages(place); }
  // Gives back what computing took; HandOverIfStored follows once the cache rank has all of the prompt.
  void BeginHandOver(Sequence& sequence);
  void HandOverIfStored(Sequence& sequence);
  // Another attempt at a sequence has come to this rank itself: what it has of an earlier one, handed over or not, ends
  // without a word, and keeps nothing back. The later one is opened when the elder has left: frames name the sequence.
  void Supersede(uint64_t sequence_id);
  bool HasElder(const Sequence& sequence);
  void GiveBackArena(Sequence& sequence);
  // States of hybrid models' sequences (engine_states.cc); with other models nothing happens. One that holds nothing.
  void TakeState(Sequence& sequence);
  // The cache rank gets it at the ends of chunks of a prompt, and of its last one, and every kStateSnapshotTokens
  // positions of an answer: what is lost with a rank is computed again from there.
  static constexpr uint32_t kStateSnapshotTokens = 64;
  void SendStateOfChunk(Sequence& sequence);
  void SendStateOfStep(Sequence& sequence);
  // Whether the cache rank has that of next_position, which it is sent; of a sequence that is not computed: true.
  bool StateIsStored(Sequence& sequence);
  void LoadState(Sequence& sequence, const ShardLink& shard, const ReceivedFrame& frame);
  // Some of what is stored has not come.
  bool LacksState(const Sequence& sequence) const;
  void BecomeDecoding(Sequence& sequence, uint32_t next_position);
  absl::Status TakeArena(Sequence& sequence);
  size_t FreePrefillBytes() const;
  // Drops a decoding sequence's working set; Attach brings it back when it is admitted again.
  void Preempt(Sequence& sequence);
  // The prompts' next `tokens` tokens, or, paced, so many of them as fit into the room before the next token, or,
  // beside steps, so many as there are to the end of a prompt, which then joins these; returns how many were computed.
  uint32_t RunPrefill(uint32_t tokens, bool paced, bool beside);
  // Tokens of a piece of a prompt that fit into the room before the next token; 0: fewer than are worth a piece.
  uint32_t PacedTokens(const Sequence& sequence, std::chrono::steady_clock::time_point now) const;
  // True where the sequence's prompt is computed in pieces that go through one layer.
  bool GoesByLayer(const Sequence& sequence) const;
  uint32_t LeastPiece(const Sequence& sequence) const;
  // The most tokens that the next iteration may inject.
  uint32_t MostInjected(std::chrono::steady_clock::time_point now) const;
  // The next at most `most` tokens of the prompt through all layers, at least one; returns how many.
  uint32_t RunChunk(Sequence& sequence, uint32_t most);
  // The next at most `most` tokens of the chunk under way, or of the whole prompt where it goes layer by layer, through
  // one layer, at least one; returns how many.
  uint32_t RunLayerPiece(Sequence& sequence, uint32_t most);
  // The same of a prompt whose prefix stays on the cache ranks: the first half of the layer for the wave's next tokens,
  // or, once all of them have had that, the second for those whose states have come. Returns how many halves.
  uint32_t RunRemotePiece(Sequence& sequence, uint32_t most);
  // What of the sequence's prefix stays there, if anything does.
  void ChoosePrefixWay(Sequence& sequence);
  PrefixCase PrefixCaseOf(const Sequence& sequence) const;
  // Sends what may be sent of its queries.
  void SendPrefixQueries(Sequence& sequence);
  void TakePrefixStates(Sequence& sequence, const ShardLink& shard, const ReceivedFrame& frame);
  // Whether a prompt has anything to do, or waits for its prefix.
  void UpdatePrefixState(Sequence& sequence);
  void BeginChunk(Sequence& sequence);
  // Where the residuals of the piece under way lie, from a position on.
  std::vector<float*> ResidualsOf(Sequence& sequence, uint32_t position);
  // Tokens of the layer under way end here.
  uint32_t LayerEnd(const Sequence& sequence) const;
  // The next `count` tokens have gone through the layer under way.
  void EndPiece(Sequence& sequence, uint32_t count);
  // The end of a layer for all tokens of the prompt, which goes layer by layer.
  void FinishPromptLayer(Sequence& sequence);
  // Whether the logits of a position of the prompt before its last are wanted. Such a position is the only one of its
  // piece of the last layer.
  bool ScoresAt(const Sequence& sequence, uint32_t position) const;
  // Takes how likely the token behind a position was.
  void ScorePrompt(Sequence& sequence, uint32_t position, std::span<const float> logits);
  void PlanNoDraw();
  PrefillStep& BeginPrefillStep(Sequence& sequence, uint32_t first, uint32_t count);
  void PlanPromptDraw(Sequence& sequence, bool followed);
  // The last token of the prompt has gone through all layers.
  void FinishPrompt(Sequence& sequence, std::span<float> logits, bool followed);
  // How decode steps and the prompts of an iteration go together.
  enum class Together : uint8_t {
    kStepsAlone,  // there is no prompt: steps may be under way at the return, which nothing but further steps may
                  // follow
    kInTurn,      // tokens wait neither for pieces of prompts nor for steps launched before them
    kBeside,      // steps of the step loop go on while prompts are computed, and stay under way; the others take turns
  };
  Together WaysOf(const Scheduler::Iteration& plan);
  // By how they decode, into batch_, peer_batch_ and local_batch_.
  void SortRows(std::span<Sequence* const> planned);
  bool RunDecodeStep(std::span<Sequence* const> rows, Together together);
  // Rows whose KV goes from the cache ranks to slots and back by frames.
  void RunFrameStep(std::span<Sequence* const> rows);
  // The sequence takes part in no steps that hold a place for it.
  void LeaveSteps(Sequence& sequence);
  // The group that may decode the sequence; null: it goes by frames.
  PeerStepGroup* FindPeerGroup(const Sequence& sequence);
  // Of peer_batch_. False when there was nothing to do.
  bool RunPeerSteps(bool runs_ahead);
  // Launches the next step of these sequences, which have rows of the group's batches, and takes the results of the
  // one before it, if there is one.
  void TurnPeerGroup(const std::shared_ptr<PeerStepGroup>& group, std::span<Sequence* const> rows);
  void LaunchPeerStep(PeerStepGroup& group, std::span<Sequence* const> rows);
  void CompletePeerStep();
  void TakePeerRow(const PeerStepGroup& group, const StepsUnderWay::Row& of, size_t row);
  void DrainPeerSteps();
  // Of both kinds of steps that run ahead, but for those that go on beside prompts.
  void DrainSteps(Together together);
  std::vector<CacheLink*> LinksOf(std::span<Sequence* const> rows) const;
  void AnnouncePeerStep(PeerStepGroup& group, std::span<Sequence* const> rows);
  absl::Status PostPeerPlan(CacheLink& link, std::span<Sequence* const> rows, uint64_t plan, uint32_t step);
  absl::Status AwaitLeaving(CacheLink& link);
  // Captured masses of a position, by list of the shard, NaN where a list was not measured.
  void TakeMasses(Sequence& sequence, const KvShard& shard, std::span<const float> masses);
  void CountDenseLists(Sequence& sequence);
  // Rows that the shard's lists selected at next_position, and that travelled.
  void CountRows(Sequence& sequence, const KvShard& shard, std::span<const PeerStepBatch::ListCounts> counts);
  // `failed`: whose peer link has. The links of sequences that end with it are made anew.
  void FailPeerLink(PeerStepGroup& group, CacheLink& failed, const absl::Status& why);
  void FailPeerLinksOf(PeerStepGroup& group, std::span<Sequence* const> rows, const absl::Status& decoded);
  // Sequences that have begun to decode ask for batch rows where their links have peer links.
  void AskForBatchRows();
  absl::Status AskForBatchRow(Sequence& sequence);
  void OnBatchRowAnswer(const CacheLink& link, Sequence& sequence, const wire::FrameHeader& header);
  void LeavePeerBatch(Sequence& sequence);
  // One planned iteration; false when there was nothing to do.
  bool RunIteration();
  // How a device can choose the token that follows `position` itself; nullopt: the logits are wanted.
  std::optional<TokenDraw> DrawFor(const Sequence& sequence, uint32_t position) const;
  // The same where masks and logits go with the draw.
  std::optional<TokenDraw> DrawAlongside(const Sequence& sequence, uint32_t position) const;
  bool IsRestricted(const Sequence& sequence, uint32_t position) const;
  absl::Status FillMask(Sequence& sequence, uint32_t position, uint32_t vocab_size, std::span<uint64_t> mask);
  // Sampler and filter, at the end of what has been generated.
  void BeginSampling(Sequence& sequence);
  // `drawn`: by the forward pass; nullopt: chosen from the logits.
  void TakeToken(Sequence& sequence, std::optional<uint32_t> drawn, std::span<float> logits);
  // Tells how far the prompt is, where the request asks for it and it is time to.
  void ReportPrompt(Sequence& sequence, std::chrono::steady_clock::time_point now);
  void ReportTokens(Sequence& sequence, uint32_t first_index, std::span<const v1::Token> tokens);
  // What Decode or Prefill drew for that row.
  std::optional<uint32_t> Drawn(int row) const;
  // Why its last token, of this attempt or an earlier one, is the last of all; nullopt: it is not.
  std::optional<v1::FinishReason> EndOf(const Sequence& sequence) const;
  void FinishSequence(Sequence& sequence, v1::FinishReason reason);
  // True once the device has failed; then everything fails over.
  bool DeviceFailed();
  void ReapSequences();
  void Retire(std::unique_ptr<Sequence> sequence);
  void ReleaseShards(std::span<const ShardLink> shards, uint64_t sequence_id, bool detach);
  void UpdateGauges();
  v1::SelectionStats Stats(const Sequence& sequence) const;

  // Constant after construction.
  const Options options_;
  const KvLayout layout_;
  const std::string prefix_salt_;  // what rows depend on beside the tokens
  InferenceRankMetrics& metrics_;

  // Own synchronisation.
  FailureRun failures_;
  std::unique_ptr<Transport> transport_;
  Mailbox mailbox_;
  LinkTable links_;
  std::unique_ptr<LinkWatch> watch_;  // until Stop; null where cache ranks are of this process
  const ShardCalls calls_;
  std::unique_ptr<TaskPool> openers_;  // Open and Attach calls
  RetriedCalls releases_;              // apart, so that opens that wait for room cannot hold them up

  // Engine thread.
  Forward& forward_;
  SlotPool slots_;
  std::optional<ResidentPrefixes> prefixes_;
  Scheduler scheduler_;
  DecodeStep decode_step_;
  StateSender state_sender_;
  std::array<PrefillStep, 2> prefill_steps_;  // in turn: a piece may be published when the next has begun
  uint32_t next_step_ = 0;
  PrefixTimes prefix_times_;
  const uint32_t max_inject_tokens_;
  std::optional<InjectController> inject_controller_;
  std::vector<float> chunk_residual_;  // of the chunk that is between two layers
  // The end of the last decode step, if decodes went on since; in the iteration of the first, its start.
  std::optional<std::chrono::steady_clock::time_point> last_step_;
  uint64_t next_plan_ = 1;
  size_t prefill_bytes_ = 0;
  bool device_failed_ = false;
  std::vector<float> logits_copy_;
  std::vector<std::optional<TokenDraw>> draws_;  // by row of the pass under way
  std::vector<Sequence*> batch_;
  std::optional<StepLoop> step_loop_;
  std::vector<Sequence*> local_batch_;  // of step_loop_
  std::vector<Sequence*> peer_batch_;
  std::vector<PeerStepBatch::Row> peer_rows_;
  // Steps from GPU to GPU, of one group at a time.
  StepsUnderWay peer_steps_;
  std::shared_ptr<PeerStepGroup> stepping_group_;
  std::vector<std::shared_ptr<PeerStepGroup>> peer_groups_;
  // Slots and a batch row that a peer link which has failed may still write to, until when.
  struct Quarantined {
    std::chrono::steady_clock::time_point until;
    std::optional<WorkingSet> working_set;
    std::shared_ptr<PeerStepGroup> group;
    int batch_row;
    uint64_t sequence_id;
  };
  std::deque<Quarantined> quarantine_;
  struct Reopen {
    Sequence* sequence;
    std::chrono::steady_clock::time_point at;
    std::chrono::steady_clock::time_point give_up;
  };
  std::vector<Reopen> reopen_;
  std::vector<Sequence*> finished_;

  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace winnow
