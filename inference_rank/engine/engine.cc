#include "inference_rank/engine/engine.h"

#include <algorithm>
#include <future>

#include "inference_rank/links/shard_release.h"
#include "inference_rank/sequence/failed_event.h"
#include "inference_rank/sequence/sequence_spans.h"
#include "model/head_parts.h"

namespace winnow {
namespace {

using State = Sequence::State;
using SteadyClock = std::chrono::steady_clock;
// Beyond any number of sequences that a rank has had: what is dropped would stay for as long as its link.
constexpr size_t kMaxReleases = size_t{1} << 20;
constexpr auto kIdleWait = std::chrono::milliseconds(50);

// Rows are shared only where they would be computed alike.
std::string PrefixSalt(const v1::Fingerprint& fingerprint) {
  return absl::StrCat(fingerprint.model_digest(), ",", fingerprint.numerics(), ",", fingerprint.row_layout(), ",");
}

}  // namespace

Engine::Engine(Options options, const KvLayout& layout, Forward& forward, SlotPool slots,
               std::unique_ptr<Transport> transport, const LinkTable::Options& link_options,
               InferenceRankMetrics& metrics)
    : options_(std::move(options)),
      layout_(layout),
      prefix_salt_(PrefixSalt(link_options.fingerprint)),
      metrics_(metrics),
      transport_(std::move(transport)),
      mailbox_([this] { transport_->Wake(); }),
      links_(
          link_options, *transport_, [this](std::function<void()> work) { return RunOnEngine(std::move(work)); },
          [this] { transport_->Wake(); }),
      watch_(transport_->capabilities().crosses_processes
                 ? std::make_unique<LinkWatch>(links_, link_options.credentials)
                 : nullptr),
      calls_{links_, layout_, options_.control_timeout,
             [this](std::vector<ShardLink> shards, uint64_t sequence_id, bool detach) {
               ReleaseShards(shards, sequence_id, detach);
             }},
      openers_(std::make_unique<TaskPool>(4)),
      releases_({.max_queued = kMaxReleases}),
      forward_(forward),
      slots_(std::move(slots)),
      scheduler_(options_.limits, layout),
      decode_step_(*transport_, layout, metrics, options_.waits),
      state_sender_(*transport_, metrics, options_.waits),
      prefill_steps_{PrefillStep(*transport_, layout, metrics, options_.waits),
                     PrefillStep(*transport_, layout, metrics, options_.waits)},
      max_inject_tokens_(options_.max_inject_tokens == 0
                             ? options_.limits.prefill_chunk_tokens
                             : std::min(options_.max_inject_tokens, options_.limits.prefill_chunk_tokens)) {
  if (options_.tpot_target.count() > 0) {
    inject_controller_.emplace(static_cast<double>(options_.tpot_target.count()));
  }
  if (options_.step_client != nullptr && StepRowsSender::FitsFrame(layout_)) {
    const StepLoop::Callbacks callbacks{
        .draw_for = [this](const Sequence& sequence, uint32_t position) { return DrawAlongside(sequence, position); },
        .is_restricted = [this](const Sequence& sequence,
                                uint32_t position) { return IsRestricted(sequence, position); },
        .fill_mask = [this](Sequence& sequence, uint32_t position, uint32_t vocab_size,
                            std::span<uint64_t> mask) { return FillMask(sequence, position, vocab_size, mask); },
        .take_token = [this](Sequence& sequence, std::optional<uint32_t> drawn,
                             std::span<float> logits) { TakeToken(sequence, drawn, logits); }};
    step_loop_.emplace(*options_.step_client, StepRowsSender(*transport_, layout_, options_.waits), layout_, callbacks,
                       metrics_);
  }
  if (options_.step_client != nullptr && options_.keep_prefixes) {
    prefixes_.emplace(slots_, ListsOfPart(layout_, slots_.num_parts()));
    scheduler_.ShareSlots([this](const Sequence& sequence) { return SharedPages(sequence); });
  }
  metrics_.slot_pages_total = slots_.num_pages();
  metrics_.host_slot_pages_total = slots_.num_pages(SlotPlace::kHostBehindGpu);
}

Engine::~Engine() {
  Stop();
}

void Engine::Start() {
  transport_->SetHandler([this](Channel& channel, ReceivedFrame frame) { OnFrame(channel, std::move(frame)); });
  thread_ = std::thread([this] { Loop(); });
}

void Engine::Stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  transport_->Wake();
  thread_.join();
  watch_.reset();
  openers_.reset();
  scheduler_.ForEach(
      [](Sequence& sequence) { sequence.Fail(absl::UnavailableError("the inference rank is stopping"), true); });
  ReapSequences();
  releases_.Stop(RetriedCalls::AtStop::kMake);
  slots_.ReleaseAll();  // frames go before their links
  links_.Clear();
}

void Engine::Submit(std::unique_ptr<Sequence> sequence) {
  const std::shared_ptr<EventSink> sink = sequence->sink;
  const uint64_t request_id = sequence->request_id;
  auto shared = std::make_shared<std::unique_ptr<Sequence>>(std::move(sequence));
  const bool accepted = mailbox_.Put([this, shared] {
    if ((*shared)->attach) Supersede((*shared)->sequence_id);
    scheduler_.Enqueue(std::move(*shared), SteadyClock::now());
  });
  if (accepted) return;
  v1::DispatchResponse event = FailedEvent(request_id, absl::UnavailableError("the inference rank is stopping"));
  event.mutable_failed()->set_retryable(true);
  sink->Send(std::move(event));
}

void Engine::Cancel(std::shared_ptr<EventSink> sink, uint64_t request_id) {
  mailbox_.Put([this, sink, request_id] {
    scheduler_.ForEach([&](Sequence& sequence) {
      if (sequence.sink == sink && sequence.request_id == request_id) sequence.cancelled = true;
    });
  });
}

void Engine::CancelAll(std::shared_ptr<EventSink> sink) {
  mailbox_.Put(
      [this, sink] { scheduler_.ForEach([&](Sequence& sequence) { sequence.cancelled |= sequence.sink == sink; }); });
}

void Engine::NoteExpired(std::span<const v1::Identity> cache_ranks) {
  if (watch_ != nullptr) watch_->NoteExpired(cache_ranks);
}

bool Engine::RunOnEngine(std::function<void()> work) {
  std::promise<void> done;
  const bool accepted = mailbox_.Put([&] {
    work();
    done.set_value();
  });
  if (accepted) done.get_future().wait();
  return accepted;
}

void Engine::Loop() {
  while (!stopping_) {
    mailbox_.Drain();
    links_.ReapDead([this](CacheLink& link) {
      scheduler_.ForEach([&](Sequence& sequence) {
        if (sequence.FindShard(link) == nullptr) return;
        sequence.Fail(absl::UnavailableError("the cache rank is gone"), true);
      });
      const PeerStepGroup* const group = link.peer_group().get();
      if (group != nullptr && group->num_gpus() > 1) {
        FailPeerLink(*link.peer_group(), link, absl::UnavailableError("the cache rank is gone"));
      }
    });
    slots_.ReleaseRead();  // frames hold their channel's window
    ReapSequences();
    ServeForks();
    AdmitWaiting();
    const bool worked = !device_failed_ && RunIteration();
    if (DeviceFailed()) ReapSequences();
    UpdateGauges();
    if (worked) {
      transport_->Progress();
      continue;
    }
    const bool pending = scheduler_.num_running() > 0;
    transport_->Wait(pending ? std::chrono::milliseconds(2) : kIdleWait, std::chrono::microseconds(pending ? 100 : 0));
  }
  DrainPeerSteps();
  // What was accepted is run: RunOnEngine callers wait for it.
  mailbox_.Close();
  mailbox_.Drain();
}

void Engine::AdmitWaiting() {
  while (true) {
    const Scheduler::Free free{.slot_pages = FreeSlotPages(SlotPlace::kFront),
                               .host_slot_pages = FreeSlotPages(SlotPlace::kHostBehindGpu),
                               .prefill_bytes = FreePrefillBytes()};
    const auto now = SteadyClock::now();
    Sequence* sequence = scheduler_.Admit(free, now);
    if (sequence == nullptr) {
      const std::span<Sequence* const> victims = scheduler_.ChooseVictims(free, now);
      if (victims.empty()) break;
      if (!peer_steps_.empty()) {  // which write into their slots, and may end some
        DrainPeerSteps();
        ReapSequences();
        continue;
      }
      for (Sequence* victim : victims) Preempt(*victim);
      continue;
    }
    if (sequence->needs_slots()) {
      if (const absl::Status status = TakeSlots(*sequence); !status.ok()) {
        sequence->Fail(status, false);
        continue;
      }
    }
    TakeState(*sequence);
    // A sequence gets a batch row once each time that it is attached.
    if (sequence->resumes && MayShareRows(*sequence) && FindPeerGroup(*sequence) == nullptr &&
        !sequence->lacks_past()) {
      RefillInPlace(*sequence);
      continue;
    }
    sequence->past_queries = {};  // where it is attached it may go back
    if (!sequence->resumes || sequence->lacks_past()) {
      if (const absl::Status status = TakeArena(*sequence); !status.ok()) {
        sequence->Fail(status, false);
        continue;
      }
    }
    reopen_.push_back({sequence, {}, std::chrono::steady_clock::now() + options_.open_patience});
  }
  const auto now = std::chrono::steady_clock::now();
  for (Reopen& entry : reopen_) {
    if (entry.sequence->state != State::kWaiting || now < entry.at || HasElder(*entry.sequence)) continue;
    StartOpening(*entry.sequence);
  }
}

size_t Engine::FreePrefillBytes() const {
  if (options_.prefill_region != nullptr) return options_.prefill_region->largest_free();
  const size_t limit = options_.limits.prefill.memory_bytes;
  return limit > prefill_bytes_ ? limit - prefill_bytes_ : 0;
}

absl::Status Engine::TakeArena(Sequence& sequence) {
  PrefillRegion* region = options_.prefill_region;
  const PrefillSizing& sizing = options_.limits.prefill;
  const uint32_t tokens = sequence.prompt_tokens();
  const uint32_t hidden_size = sizing.ByLayer(layout_, tokens) ? sizing.hidden_size : 0;
  WINNOW_ASSIGN_OR_RETURN(PrefillArena arena, region != nullptr
                                                  ? PrefillArena::CreateIn(*region, layout_, tokens, hidden_size)
                                                  : PrefillArena::Create(layout_, tokens, hidden_size));
  prefill_bytes_ += arena.bytes();
  sequence.arena.emplace(std::move(arena));
  return absl::OkStatus();
}

void Engine::Preempt(Sequence& sequence) {
  ++metrics_.preempted_sequences;
  ++sequence.preempted_count;
  if (sequence.spans) sequence.spans->Preempted();
  if (step_loop_.has_value() && MayShareRows(sequence)) step_loop_->KeepPast(sequence);
  LeaveSteps(sequence);
  if (MayShareRows(sequence)) KeepRows(sequence, KeptEnd(sequence));
  state_sender_.Send(sequence);
  sequence.recurrent_state = {};
  sequence.working_set.reset();
  scheduler_.Preempt(sequence, SteadyClock::now());
}

void Engine::LeaveSteps(Sequence& sequence) {
  LeavePeerBatch(sequence);
  if (step_loop_.has_value()) step_loop_->Leave(sequence);
}

void Engine::GiveBackArena(Sequence& sequence) {
  if (!sequence.arena.has_value()) return;
  prefill_bytes_ -= sequence.arena->bytes();
  sequence.arena.reset();
}

void Engine::BeginHandOver(Sequence& sequence) {
  GiveBackArena(sequence);
  LeaveSteps(sequence);
  sequence.working_set.reset();
  if (!sequence.held()) sequence.recurrent_state = {};
  sequence.early_frames.clear();
  sequence.state = State::kHandingOver;
}

void Engine::HandOverIfStored(Sequence& sequence) {
  if (sequence.state != State::kHandingOver || sequence.cancelled || !sequence.failure.ok()) return;
  if (sequence.held()) return;
  if (sequence.watermark < sequence.prompt_tokens()) return;
  if (options_.state_floats > 0 && sequence.stored_state_position < sequence.prompt_tokens()) return;
  sequence.state = State::kHandedOver;
  ++metrics_.handed_over_sequences;
  if (sequence.spans) sequence.spans->End(sequence, Stats(sequence), "handed_over");
  v1::DispatchResponse event;
  event.set_request_id(sequence.request_id);
  event.mutable_handed_over();
  sequence.sink->Send(std::move(event));
}

void Engine::Supersede(uint64_t sequence_id) {
  scheduler_.ForEach([&](Sequence& sequence) {
    if (sequence.sequence_id != sequence_id) return;
    // Behind a cut stream an earlier attempt may come after the one that the router waits for, which must hear of it.
    // Of attempts that it gave up the router takes no word.
    if (!sequence.cancelled && sequence.state != State::kHandedOver) {
      v1::DispatchResponse event =
          FailedEvent(sequence.request_id, absl::AbortedError("another attempt has taken the sequence over"));
      event.mutable_failed()->set_retryable(true);
      sequence.sink->Send(std::move(event));
    }
    sequence.taken_over = true;
    sequence.cancelled = true;
    sequence.followers_due = 0;
  });
}

bool Engine::HasElder(const Sequence& sequence) {
  return scheduler_.Find([&](const Sequence& other) {
    return other.sequence_id == sequence.sequence_id && other.arrival < sequence.arrival;
  }) != nullptr;
}

void Engine::BecomeDecoding(Sequence& sequence, uint32_t next_position) {
  sequence.working_set->FinishLoad(next_position);
  sequence.state = State::kDecoding;
  if (sequence.selects_in_place() || sequence.trace) return;
  if (next_position >= sequence.spec.sink_tokens && FindPeerGroup(sequence) != nullptr) {
    sequence.peer_state = Sequence::PeerState::kWanted;
  }
}

bool Engine::DeviceFailed() {
  const absl::Status status = forward_.status();
  if (status.ok()) return false;
  scheduler_.ForEach([](Sequence& sequence) {
    sequence.Fail(absl::UnavailableError("the inference rank's device has failed"), true);
  });
  if (!std::exchange(device_failed_, true) && options_.on_device_failure) options_.on_device_failure(status);
  return true;
}

// Takes out what has finished, failed, was cancelled or is past its deadline. Runs every iteration, whether or not
// there is new work.
void Engine::ReapSequences() {
  finished_.clear();
  const auto now = std::chrono::system_clock::now();
  scheduler_.ForEach([&](Sequence& sequence) {
    if (sequence.state == State::kOpening && !stopping_) return;
    // Its output has ended, but its rows are wanted.
    if (sequence.held() && sequence.cancelled && sequence.failure.ok() && !stopping_) return;
    if (!sequence.cancelled && sequence.failure.ok() && now > sequence.deadline) {
      sequence.Fail(absl::DeadlineExceededError("the request's deadline has passed"), false);
    }
    if (!sequence.cancelled && sequence.failure.ok()) return;
    // A step under way writes into its slots from another GPU.
    const bool is_written_to = sequence.batch_row >= 0 && sequence.steps_under_way > 0;
    if (!is_written_to || stopping_ || device_failed_) finished_.push_back(&sequence);
  });
  for (Sequence* sequence : finished_) Retire(scheduler_.Remove(sequence));
}

void Engine::Retire(std::unique_ptr<Sequence> sequence) {
  if (sequence->spans) {
    sequence->spans->End(*sequence, Stats(*sequence), sequence->failure.ok() ? "cancelled" : "failed");
  }
  // To the router a sequence that was handed over is another rank's.
  if (!sequence->cancelled && sequence->state != State::kHandedOver) {
    v1::DispatchResponse event = FailedEvent(sequence->request_id, sequence->failure);
    event.mutable_failed()->set_retryable(sequence->retryable);
    event.mutable_failed()->set_sequence_lost(sequence->sequence_lost);
    ++metrics_.failed_sequences;
    // Where the sequence is gone, or another attempt has it, that is no fault of this rank.
    const bool is_ours = sequence->retryable && !sequence->sequence_lost && !absl::IsAborted(sequence->failure);
    if (is_ours && !stopping_) failures_.Failed(sequence->failure, SteadyClock::now());
    sequence->sink->Send(std::move(event));
  }
  std::erase_if(reopen_, [&](const Reopen& entry) { return entry.sequence == sequence.get(); });
  GiveBackArena(*sequence);
  LetGoOfSource(*sequence);
  LeaveSteps(*sequence);
  sequence->early_frames.clear();
  if (!sequence->is_attached()) return;
  // A sequence that another rank may take over stays on its cache ranks for a while. So do the shards of one that is
  // being taken over, whose other shards have not been attached there yet.
  const bool detach = sequence->taken_over || (!sequence->cancelled && sequence->retryable && !sequence->sequence_lost);
  if (detach && stopping_) return;  // the end of the links does it
  ReleaseShards(sequence->shards, sequence->sequence_id, detach);
}

// Until each cache rank has answered, or needs not be told any more.
void Engine::ReleaseShards(std::span<const ShardLink> shards, uint64_t sequence_id, bool detach) {
  for (const ShardLink& shard : shards) {
    releases_.Add(shard.link->address(), [release = ShardRelease(shard, sequence_id, detach),
                                          timeout = options_.control_timeout] { return release.Call(timeout); });
  }
}

void Engine::UpdateGauges() {
  uint64_t rows = 0, queued_prompt_tokens = 0, working_set_bytes = 0, peer_sequences = 0, local_sequences = 0;
  scheduler_.ForEach([&](Sequence& sequence) {
    queued_prompt_tokens += sequence.queued_prompt_tokens();
    peer_sequences += sequence.peer_state == Sequence::PeerState::kInBatch;
    local_sequences += sequence.step_row >= 0;
    if (sequence.working_set.has_value()) rows += sequence.working_set->resident_rows();
    if (sequence.awaits_cache_ranks()) {
      for (const ShardLink& shard : sequence.shards) shard.link->MarkAwaited();
    }
    const bool takes_steps = sequence.state == State::kDecoding && !sequence.parked_since.has_value();
    if (takes_steps) working_set_bytes += sequence.working_set_bytes();
  });
  metrics_.failing = usable().ok() ? 0 : 1;
  metrics_.parked_sequences = scheduler_.num_parked();
  metrics_.fast_working_set_bytes = working_set_bytes;
  metrics_.running_sequences = scheduler_.num_running();
  metrics_.waiting_sequences = scheduler_.num_waiting();
  metrics_.peer_sequences = peer_sequences;
  metrics_.local_sequences = local_sequences;
  metrics_.working_set_rows = rows;
  metrics_.queued_prompt_tokens = queued_prompt_tokens;
  const auto used = [&](SlotPlace place) { return slots_.num_pages(place) - FreeSlotPages(place); };
  metrics_.host_slot_pages_used = used(SlotPlace::kHostBehindGpu);
  metrics_.slot_pages_used = used(SlotPlace::kFront) + used(SlotPlace::kHostBehindGpu);
  if (prefixes_.has_value()) {
    metrics_.resident_prefix_bytes =
        prefixes_->num_pages() * slots_.num_parts() * kSlotPageTokens * layout_.row_bytes();
    metrics_.resident_prefix_evicted_tokens = prefixes_->evicted_columns() * kSlotPageTokens;
  }
  metrics_.prefill_kv_bytes = prefill_bytes_;
  metrics_.kv_sent_bytes = links_.sent_bytes();
  metrics_.kv_received_bytes = links_.received_bytes();
  metrics_.last_progress_unix_seconds =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void Engine::DistrustLink(CacheLink& link, const absl::Status& why) {
  ++metrics_.malformed_frames;
  scheduler_.ForEach([&](Sequence& sequence) {
    if (sequence.FindShard(link) == nullptr) return;
    sequence.Fail(Annotate(why, "malformed frame from the cache rank"), true);
  });
  link.channel()->Close();
  link.MarkDead();
}

}  // namespace winnow
