#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/selection/selection_spec.h"
#include "inference_rank/links/shard_calls.h"
#include "inference_rank/links/shard_link.h"
#include "inference_rank/memory/prefill_arena.h"
#include "inference_rank/memory/working_set.h"
#include "inference_rank/sequence/event_sink.h"
#include "inference_rank/sequence/mass_summary.h"
#include "inference_rank/sequence/prompt_report.h"
#include "inference_rank/sequence/prompt_scores.h"
#include "inference_rank/sequence/remote_prefix.h"
#include "inference_rank/sequence/sampler.h"
#include "inference_rank/sequence/selection_trace.h"
#include "inference_rank/sequence/token_filter.h"
#include "transport/transport.h"
#include "winnow/v1/rank.pb.h"

namespace winnow {

class SequenceSpans;

// One request on an inference rank. Owned by the engine thread from the moment it is submitted; the control thread
// reads the constant part while the sequence is kOpening.
//
//   kWaiting -> kOpening -> kPrefilling ------------> kDecoding -> (finished, failed or cancelled: destroyed)
//                       \-> kRefilling (re-attach) -/
//   kAwaitingFork -> kOpening -> kWaiting, when it begins as a fork of another sequence: from then on as if preempted.
//   kDecoding -> kWaiting when it is preempted: its working set is dropped, its KV stays on the cache rank.
//          or, with a cached prefix: kOpening -> kLoadingPrefix -> kPrefilling
// With a prefix that stays on the cache ranks it is kLoadingPrefix whenever it waits for what they have of it.
//
// With `hand_over` it leaves the middle row after its first token: kHandingOver until the cache rank has every row of
// the prompt, then kHandedOver, without arena and working set, until another rank has attached or the router cancels.
struct Sequence {
  enum class State {
    kAwaitingFork,
    kWaiting,
    kOpening,
    kLoadingPrefix,
    kPrefilling,
    kRefilling,
    kDecoding,
    kHandingOver,
    kHandedOver
  };

  // Constant after submission.
  uint64_t request_id = 0;
  uint64_t sequence_id = 0;
  std::shared_ptr<EventSink> sink;
  std::vector<ShardPlace> places;  // of its shards, at least one, each on a cache rank of its own
  std::vector<uint32_t> prompt;
  std::string tenant;  // who may share its prefix, and whose share of the rank it takes
  bool attach = false;
  bool repeats = false;    // an attempt at it on another rank was lost
  bool hand_over = false;  // another rank decodes
  bool skips_prefix_cache = false;
  v1::SamplingParams sampling_params;
  v1::StoppingParams stopping;
  std::shared_ptr<TokenGrammar> grammar;  // that its output must be of; may be null
  SelectionSpec spec;
  // kByPosition: its steps run where its rows lie, all of them, whatever it attends to (StepLoop). On CPUs, dense
  // sequences lie so as well.
  SlotOrder slot_order = SlotOrder::kParts;
  std::optional<uint32_t> top_logprobs;
  std::chrono::system_clock::time_point deadline;
  uint32_t max_positions = 0;
  int32_t priority = 0;      // higher goes first
  double tenant_weight = 1;  // > 0
  // See DispatchRequest.Submit. The engine sets fork_of to 0 when the sequence is to be opened on its own after all.
  uint64_t fork_of = 0;
  bool fork_at_current_token = false;

  // The scheduler's.
  uint64_t arrival = 0;                                 // grows from sequence to sequence
  std::chrono::steady_clock::time_point waiting_since;  // the last time it came to wait
  std::chrono::steady_clock::time_point running_since;  // the last time it was admitted
  std::chrono::steady_clock::time_point last_chunk;     // of its prompt; at first its admission
  double share_tag = 0;                                 // what its tenant had been served when it was admitted
  uint64_t last_turn = 0;                               // grows with each decode step planned for any sequence
  bool admitted_past_age_bound = false;
  size_t generated_before_admission = 0;  // tokens of `generated`
  // It decodes, but the working sets of others fill fast memory: since when. nullopt: it has its turn, or never had
  // one.
  std::optional<std::chrono::steady_clock::time_point> parked_since;
  std::chrono::steady_clock::time_point turn_since;  // the last time it became one of those that take steps
  bool resumes = false;  // was preempted: it is attached to its cache ranks, which have its rows, and must be refilled

  // Engine thread.
  State state = State::kWaiting;
  bool cancelled = false;
  absl::Status failure;  // set: the sequence leaves at the end of this iteration
  bool retryable = false;
  bool sequence_lost = false;
  std::vector<uint32_t> generated;
  std::optional<Sampler> sampler;
  std::optional<TokenFilter> filter;  // beside the sampler
  std::vector<ShardLink> shards;      // as the places; empty before it is opened or attached for the first time
  bool taken_over = false;            // another rank attaches to it: its shards are not ours to free
  std::optional<PrefillArena> arena;
  // Of a sequence that looks back in place, while it has no row of the batch: queries of the positions before the next
  // one, as StepSequence has them.
  std::vector<float> past_queries;
  std::chrono::steady_clock::time_point prefix_asked{};  // for rows of the prefix
  std::optional<RemotePrefix> remote_prefix;  // set while it is prefilled, where its prefix stays on the cache ranks
  std::optional<WorkingSet> working_set;
  // Of a hybrid model, while it is computed: what it keeps in the place of rows, of the positions below next_position
  // (GatedDeltaConfig); and how much of it has come from the cache rank since it was attached.
  std::vector<float> recurrent_state;
  size_t loaded_state_bytes = 0;
  // The positions of the states that its first cache rank was sent last, or gave back, and that it has stored.
  uint32_t sent_state_position = 0;
  uint32_t stored_state_position = 0;
  bool has_state() const { return !recurrent_state.empty(); }
  size_t state_bytes() const { return recurrent_state.size() * sizeof(float); }
  enum class PeerState { kNone, kWanted, kAsked, kInBatch };  // kNone: it goes by frames
  PeerState peer_state = PeerState::kNone;
  int batch_row = -1;          // kAsked and kInBatch
  size_t row_answers_due = 0;  // kAsked: cache ranks that have not said that it has the batch row
  // StepLoop's: its row of the batch, -1 while it has none, and in how many steps under way it takes part.
  int step_row = -1;
  uint32_t steps_under_way = 0;
  // What came before the Attach answer, and whose it is: Refill frames, and that another rank has attached since.
  std::vector<std::pair<const CacheLink*, ReceivedFrame>> early_frames;
  size_t refills_due = 0;      // shards whose rows are still to come, all of them
  uint32_t next_position = 0;  // the next position to compute; rows below are computed
  // The position that the next step computes, behind those under way.
  uint32_t next_step_position() const { return next_position + steps_under_way; }
  // Of the prompt: its first rows, which the cache ranks had when it was opened or attached; and those of them that
  // came from the prefix cache, which is what is told of it.
  uint32_t stored_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t watermark = 0;  // rows below are on the cache ranks: the lowest of all shards

  // Of a sequence that others fork: while it is held it neither decodes nor leaves.
  uint32_t followers_due = 0;        // that are to come
  std::vector<float> prompt_logits;  // from the end of its prompt until all followers have drawn their first token
  std::chrono::steady_clock::time_point prompt_end;
  uint32_t forks_under_way = 0;
  bool held() const { return forks_under_way > 0 || !prompt_logits.empty(); }
  // Of a sequence that begins as a fork.
  bool holds_source = false;             // counts among its source's forks_under_way
  bool forked = false;                   // and has not been admitted since
  std::vector<v1::Token> with_logprobs;  // `generated` as it was reported, with top_logprobs

  std::shared_ptr<SequenceSpans> spans;       // where the request is traced (W3C Trace Context); else null
  std::optional<SelectionTrace> trace;        // for requests that ask what their steps attended to
  std::optional<PromptReport> prompt_report;  // for requests that ask how far their prompt is
  std::optional<PromptScores> prompt_scores;  // for requests that ask how likely their prompt is

  // Statistics.
  MassSummary mass;                       // of what was attended, corrections included
  MassSummary mass_before;                // the same without corrections; sequences that wait for verifications only
  bool mass_is_bound = false;             // some of `mass` are lower bounds
  uint64_t missed_top_k_corrections = 0;  // (position, layer, kv head) corrected so
  uint64_t widened_corrections = 0;
  uint64_t correction_rows = 0;  // read on the cache rank
  uint64_t attended_rows = 0;    // by decode steps here, over all layers and kv heads
  // In place: those of a step, as of the newest position whose captured mass was measured.
  uint64_t selected_rows_of_step = 0;
  uint64_t selection_lookups = 0;
  uint64_t selection_hits = 0;
  uint64_t streamed_rows = 0;
  uint64_t streamed_bytes = 0;
  uint64_t prefetched_rows = 0;
  uint32_t decode_steps = 0;
  uint32_t preempted_count = 0;

  // The shard behind a link; null when there is none.
  ShardLink* FindShard(const CacheLink& link) {
    const auto found = std::find_if(shards.begin(), shards.end(), [&](const auto& s) { return s.link.get() == &link; });
    return found == shards.end() ? nullptr : &*found;
  }
  const ShardLink* FindShard(const CacheLink& link) const { return const_cast<Sequence*>(this)->FindShard(link); }
  // That of the first shard, or null.
  CacheLink* first_link() const { return shards.empty() ? nullptr : shards.front().link.get(); }
  // The group that it has or wants batch rows of; null while peer_state is kNone.
  PeerStepGroup* peer_group() const {
    return peer_state == PeerState::kNone ? nullptr : shards.front().link->peer_group().get();
  }
  bool is_attached() const { return !shards.empty() && shards.front().attach_epoch != 0; }
  // Of fast memory on its cache ranks.
  uint64_t working_set_bytes() const {
    uint64_t bytes = 0;
    for (const ShardLink& shard : shards) bytes += shard.working_set_bytes.value_or(0);
    return bytes;
  }
  void UpdateWatermark() {
    watermark = shards.front().watermark;
    for (const ShardLink& shard : shards) watermark = std::min(watermark, shard.watermark);
  }
  uint32_t prompt_tokens() const { return static_cast<uint32_t>(prompt.size()); }
  uint32_t known_tokens() const { return static_cast<uint32_t>(prompt.size() + generated.size()); }
  uint32_t token_at(uint32_t position) const {
    return position < prompt.size() ? prompt[position] : generated[position - prompt.size()];
  }
  // What it has to compute of its prompt, if nothing of it is lost.
  uint32_t queued_prompt_tokens() const {
    if (state == State::kPrefilling || state == State::kLoadingPrefix) return prompt_tokens() - next_position;
    return !attach && !resumes && (state == State::kWaiting || state == State::kOpening) ? prompt_tokens() : 0;
  }
  // To another rank it leaves nothing but what is on the cache rank, so it needs no slots.
  bool needs_slots() const { return !hand_over; }
  // Rows are selected where the sequence is computed, which has them all.
  bool selects_in_place() const { return slot_order == SlotOrder::kByPosition && !IsDense(spec); }
  // It selects in place with queries of the past, which nobody has: the end of its prompt is computed, whether it is
  // stored or not, and its answer decoded from there.
  bool lacks_past() const { return selects_in_place() && PredictsFromPast(spec.predictor) && past_queries.empty(); }
  // A position leaves the recent window only below the watermark, where other rows are on the cache ranks alone.
  bool ready_to_decode() const {
    if (held()) return false;
    if (selects_in_place()) return true;
    if (peer_state == PeerState::kWanted || peer_state == PeerState::kAsked) return false;
    const uint32_t recent_start = RecentStart(next_position, spec.recent_tokens, spec.sink_tokens, kBlockTokens);
    return recent_start <= spec.sink_tokens || recent_start <= watermark;
  }
  // It can do nothing before something of it comes from there.
  bool awaits_cache_ranks() const {
    switch (state) {
      case State::kLoadingPrefix:
      case State::kRefilling:
      case State::kHandingOver:
        return true;
      case State::kDecoding:
        return !held() && !ready_to_decode();
      default:
        return false;
    }
  }
  void Fail(absl::Status status, bool can_retry, bool lost = false) {
    if (!failure.ok()) return;
    failure = std::move(status);
    retryable = can_retry;
    sequence_lost = lost;
  }
};

}  // namespace winnow
