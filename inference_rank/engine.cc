#include "inference_rank/engine.h"

#include <algorithm>
#include <cstring>
#include <future>

#include "common/base/check.h"
#include "common/selection/selection_proto.h"
#include "inference_rank/prefetch_commit.h"

namespace winnow {
namespace {

using State = Sequence::State;
using SteadyClock = std::chrono::steady_clock;
constexpr auto kIdleWait = std::chrono::milliseconds(50);
constexpr auto kReopenInterval = std::chrono::milliseconds(20);
// Longer than any wait of a lane's other side, which ends all of what it has begun.
constexpr auto kQuarantine = 2 * std::chrono::microseconds(wire::kLaneTimeoutUs);

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
      openers_(std::make_unique<TaskPool>(4)),
      releasers_(std::make_unique<TaskPool>(1)),
      forward_(forward),
      slots_(std::move(slots)),
      scheduler_(options_.limits, layout),
      decode_step_(*transport_, layout, metrics, options_.waits),
      prefill_step_(*transport_, layout, options_.waits),
      max_inject_tokens_(options_.max_inject_tokens == 0
                             ? options_.limits.prefill_chunk_tokens
                             : std::min(options_.max_inject_tokens, options_.limits.prefill_chunk_tokens)) {
  if (options_.tpot_target.count() > 0) {
    inject_controller_.emplace(static_cast<double>(options_.tpot_target.count()), max_inject_tokens_);
  }
  metrics_.slot_pages_total = slots_.num_pages();
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
  openers_.reset();
  scheduler_.ForEach(
      [](Sequence& sequence) { sequence.Fail(absl::UnavailableError("the inference rank is stopping"), true); });
  ReapSequences();
  releasers_.reset();
  links_.Clear();
}

void Engine::Submit(std::unique_ptr<Sequence> sequence) {
  const std::shared_ptr<EventSink> sink = sequence->sink;
  const uint64_t request_id = sequence->request_id;
  auto shared = std::make_shared<std::unique_ptr<Sequence>>(std::move(sequence));
  const bool accepted = mailbox_.Put([this, shared] {
    if ((*shared)->attach) ForgetHandedOver((*shared)->sequence_id);
    scheduler_.Enqueue(std::move(*shared), SteadyClock::now());
  });
  if (accepted) return;
  v1::DispatchResponse event;
  event.set_request_id(request_id);
  event.mutable_failed()->set_code(static_cast<uint32_t>(absl::StatusCode::kUnavailable));
  event.mutable_failed()->set_message("the inference rank is stopping");
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
        if (sequence.link.get() == &link) sequence.Fail(absl::UnavailableError("the cache rank is gone"), true);
      });
    });
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
  // What was accepted is run: RunOnEngine callers wait for it.
  mailbox_.Close();
  mailbox_.Drain();
}

void Engine::AdmitWaiting() {
  while (true) {
    const Scheduler::Free free{.slot_pages = slots_.free_pages(), .prefill_bytes = FreePrefillBytes()};
    const auto now = SteadyClock::now();
    Sequence* sequence = scheduler_.Admit(free, now);
    if (sequence == nullptr) {
      const std::span<Sequence* const> victims = scheduler_.ChooseVictims(free, now);
      if (victims.empty()) break;
      for (Sequence* victim : victims) Preempt(*victim);
      continue;
    }
    if (sequence->needs_slots()) {
      absl::StatusOr<WorkingSet> set =
          WorkingSet::Create(slots_, layout_, sequence->spec, sequence->max_positions, sequence->prompt_tokens());
      if (!set.ok()) {
        sequence->Fail(set.status(), false);
        continue;
      }
      sequence->working_set.emplace(*std::move(set));
    }
    if (!sequence->resumes) {
      if (const absl::Status status = TakeArena(*sequence); !status.ok()) {
        sequence->Fail(status, false);
        continue;
      }
    }
    StartOpening(*sequence);
    reopen_.push_back({sequence, {}, std::chrono::steady_clock::now() + options_.open_patience});
  }
  const auto now = std::chrono::steady_clock::now();
  for (Reopen& entry : reopen_) {
    if (entry.sequence->state != State::kWaiting || now < entry.at) continue;
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
  WINNOW_ASSIGN_OR_RETURN(PrefillArena arena, region != nullptr ? PrefillArena::CreateIn(*region, layout_, tokens)
                                              : sizing.ByLayer(layout_, tokens)
                                                  ? PrefillArena::CreateForLayers(layout_, tokens, sizing.hidden_size)
                                                  : PrefillArena::Create(layout_, tokens));
  prefill_bytes_ += arena.bytes();
  sequence.arena.emplace(std::move(arena));
  return absl::OkStatus();
}

void Engine::Preempt(Sequence& sequence) {
  ++metrics_.preempted_sequences;
  ++sequence.preempted_count;
  LeaveLane(sequence);
  sequence.working_set.reset();
  scheduler_.Preempt(sequence, SteadyClock::now());
}

// Opens or attaches on a control thread. The sequence stays where it is until OnOpened, whatever happens to it
// meanwhile.
void Engine::StartOpening(Sequence& sequence) {
  sequence.state = State::kOpening;
  openers_->Add([this, &sequence] {
    absl::StatusOr<std::shared_ptr<CacheLink>> link = links_.Get(sequence.cache_rank);
    absl::StatusOr<v1::AttachSequenceResponse> opened = absl::UnknownError("");
    if (!link.ok()) {
      opened = link.status();
    } else if (sequence.attach || sequence.resumes) {
      v1::AttachSequenceRequest request;
      request.set_channel_id((*link)->channel_id());
      request.set_sequence_id(sequence.sequence_id);
      request.set_max_restart_position(std::max(sequence.known_tokens(), 1u) - 1);
      opened = (*link)->Attach(request, options_.control_timeout);
    } else {
      v1::OpenSequenceRequest request;
      request.set_channel_id((*link)->channel_id());
      request.set_sequence_id(sequence.sequence_id);
      *request.mutable_selection() = ToProto(sequence.spec);
      request.set_max_positions(sequence.max_positions);
      request.set_prompt_tokens(sequence.prompt_tokens());
      *request.mutable_sampling() = sequence.sampling_params;
      request.mutable_prompt_token_ids()->Assign(sequence.prompt.begin(), sequence.prompt.end());
      request.set_prefix_salt(prefix_salt_ + sequence.tenant);
      request.set_pulls_prefix(sequence.arena->by_layer());
      const absl::StatusOr<v1::OpenSequenceResponse> response = (*link)->Open(request, options_.control_timeout);
      if (response.ok()) {
        opened = v1::AttachSequenceResponse();
        opened->set_attach_epoch(response->attach_epoch());
        opened->set_restart_position(response->cached_tokens());
      } else {
        opened = response.status();
      }
    }
    mailbox_.Put([this, &sequence, link = link.ok() ? *link : nullptr, opened] { OnOpened(sequence, link, opened); });
  });
}

void Engine::OnOpened(Sequence& sequence, std::shared_ptr<CacheLink> link,
                      const absl::StatusOr<v1::AttachSequenceResponse>& opened) {
  const auto entry =
      std::find_if(reopen_.begin(), reopen_.end(), [&](const Reopen& e) { return e.sequence == &sequence; });
  WINNOW_CHECK(entry != reopen_.end());
  sequence.link = std::move(link);
  if (!opened.ok()) {
    const bool full = opened.status().code() == absl::StatusCode::kResourceExhausted;
    if (full && std::chrono::steady_clock::now() < entry->give_up) {
      sequence.state = State::kWaiting;
      sequence.link.reset();
      entry->at = std::chrono::steady_clock::now() + kReopenInterval;
      return;
    }
    reopen_.erase(entry);
    sequence.state = State::kWaiting;
    const bool lost = opened.status().code() == absl::StatusCode::kNotFound;
    const bool unreachable = opened.status().code() == absl::StatusCode::kUnavailable ||
                             opened.status().code() == absl::StatusCode::kDeadlineExceeded;
    sequence.link.reset();  // nothing to release there
    sequence.Fail(opened.status(), lost || unreachable, lost);
    return;
  }
  reopen_.erase(entry);
  sequence.attach_epoch = opened->attach_epoch();
  const bool resumed = std::exchange(sequence.resumes, false);
  if (resumed) {
    if (!std::exchange(sequence.forked, false)) ++metrics_.resumed_sequences;
  } else if (sequence.attach) {
    ++metrics_.reattached_sequences;
  }
  // Of a new sequence: where its cached prefix ends.
  const uint32_t restart = opened->restart_position();
  sequence.next_position = restart;
  sequence.watermark = restart;
  sequence.sampler.emplace(sequence.sampling_params, sequence.prompt);
  for (uint32_t id : sequence.generated) sequence.sampler->Observe(id);
  if (restart == 0) {
    // A sequence that resumes took no arena: it needs one where streaming heads forbid to restart at an earlier anchor.
    if (resumed) {
      const size_t needed = options_.limits.prefill.BytesNeeded(layout_, sequence.prompt_tokens());
      const absl::Status status =
          needed > FreePrefillBytes() ? absl::ResourceExhaustedError("no prefill memory is free") : TakeArena(sequence);
      sequence.state = State::kWaiting;
      if (!status.ok()) return sequence.Fail(Annotate(status, "the preempted sequence must be prefilled again"), true);
    }
    sequence.state = State::kPrefilling;
    return;
  }
  if (resumed || sequence.attach) {
    if (sequence.hand_over && restart >= sequence.prompt_tokens()) {
      BeginHandOver(sequence);
      return HandOverIfStored(sequence);
    }
    GiveBackArena(sequence);
    sequence.state = State::kRefilling;
  } else if (restart < sequence.prompt_tokens()) {
    sequence.cached_tokens = restart;
    metrics_.cached_prompt_tokens += restart;
    scheduler_.CreditCachedTokens(sequence, restart);
    sequence.state = State::kLoadingPrefix;
    if (sequence.arena->by_layer()) PullPrefix(sequence);
  } else {
    sequence.Fail(absl::InternalError(absl::StrCat("the cache rank claims ", restart, " of ", sequence.prompt_tokens(),
                                                   " prompt tokens")),
                  false);
    return;
  }
  for (const ReceivedFrame& frame : std::exchange(sequence.early_refill, {})) {
    if (frame.header().attach_epoch == sequence.attach_epoch) TakeRefill(sequence, frame.header(), frame.payload());
  }
}

void Engine::PullPrefix(Sequence& sequence) {
  sequence.state = State::kLoadingPrefix;
  sequence.arena->layer_position = sequence.cached_tokens;
  v1::PushPrefixRequest request;
  request.set_channel_id(sequence.link->channel_id());
  request.set_sequence_id(sequence.sequence_id);
  request.set_attach_epoch(sequence.attach_epoch);
  request.set_layer(static_cast<uint32_t>(sequence.arena->layer));
  request.set_end_position(sequence.cached_tokens);
  openers_->Add([this, link = sequence.link, request] {
    const absl::Status pushed = link->PushPrefix(request, options_.control_timeout);
    if (pushed.ok()) return;
    mailbox_.Put([this, pushed, id = request.sequence_id(), epoch = request.attach_epoch()] {
      Sequence* sequence = scheduler_.Find(
          [&](const Sequence& other) { return other.sequence_id == id && other.attach_epoch == epoch; });
      if (sequence != nullptr) sequence->Fail(pushed, /*can_retry=*/true);
    });
  });
}

void Engine::GiveBackArena(Sequence& sequence) {
  if (!sequence.arena.has_value()) return;
  prefill_bytes_ -= sequence.arena->bytes();
  sequence.arena.reset();
}

void Engine::BeginHandOver(Sequence& sequence) {
  GiveBackArena(sequence);
  sequence.working_set.reset();
  sequence.early_refill.clear();
  sequence.state = State::kHandingOver;
}

void Engine::HandOverIfStored(Sequence& sequence) {
  if (sequence.state != State::kHandingOver || sequence.cancelled || !sequence.failure.ok()) return;
  if (sequence.held()) return;
  if (sequence.watermark < sequence.prompt_tokens()) return;
  sequence.state = State::kHandedOver;
  ++metrics_.handed_over_sequences;
  v1::DispatchResponse event;
  event.set_request_id(sequence.request_id);
  event.mutable_handed_over();
  sequence.sink->Send(std::move(event));
}

void Engine::ForgetHandedOver(uint64_t sequence_id) {
  scheduler_.ForEach([&](Sequence& sequence) {
    if (sequence.sequence_id != sequence_id || sequence.state != State::kHandedOver) return;
    sequence.attach_epoch = 0;  // not ours to release
    sequence.cancelled = true;
  });
}

void Engine::BecomeDecoding(Sequence& sequence, uint32_t next_position) {
  sequence.working_set->FinishLoad(next_position);
  sequence.state = State::kDecoding;
  DecodeLane* lane = sequence.link->lane();
  if (lane != nullptr && lane->shape().spec == sequence.spec && next_position >= sequence.spec.sink_tokens) {
    sequence.lane_state = Sequence::LaneState::kWanted;
  }
}

bool Engine::RunIteration() {
  AskForSeats();
  const auto start = SteadyClock::now();
  const uint32_t most = inject_controller_.has_value() ? inject_controller_->tokens() : max_inject_tokens_;
  metrics_.max_inject_tokens = most;
  const Scheduler::Iteration plan = scheduler_.Plan(most, start);
  const uint32_t prefilled = RunPrefill(plan.prefill_tokens);
  if (!forward_.status().ok()) return true;
  if (!RunDecodeStep(plan.rows)) {
    last_step_.reset();
    return prefilled > 0;
  }
  metrics_.injected_tokens += prefilled;
  const auto end = SteadyClock::now();
  // From token to token: what lies between two steps is part of it.
  const std::chrono::duration<double, std::micro> taken = end - last_step_.value_or(start);
  if (inject_controller_.has_value()) inject_controller_->Observe(prefilled, taken.count());
  last_step_ = end;
  return true;
}

// In token-layers: tokens, each through one layer.
uint32_t Engine::RunPrefill(uint32_t tokens) {
  const uint64_t layers = layout_.num_layers, planned = tokens * layers;
  uint64_t done = 0;
  while (done < planned && forward_.status().ok()) {
    const auto now = SteadyClock::now();
    Sequence* sequence = scheduler_.NextPrefill(now);
    if (sequence == nullptr) break;
    sequence->last_chunk = now;
    if (sequence->arena->by_layer()) {
      done += RunLayerChunk(*sequence, planned - done);
    } else {
      if (planned - done < layers) break;
      done += RunPrefillChunk(*sequence, static_cast<uint32_t>((planned - done) / layers)) * layers;
    }
  }
  return static_cast<uint32_t>((done + layers - 1) / layers);
}

uint32_t Engine::RunPrefillChunk(Sequence& sequence, uint32_t most) {
  const uint32_t first = sequence.next_position;
  const bool last = first + 1 == sequence.prompt_tokens();
  const uint32_t count = last ? 1 : std::min(most, sequence.prompt_tokens() - 1 - first);
  const TimelineSpan span(metrics_.timeline, Span::kPrefillChunk, kNoLayer, 0, 1);
  const bool followed = last && HasFollowers(sequence);
  if (last) PlanPromptDraw(sequence, followed);
  prefill_step_.Begin(sequence, first, count);
  const std::span<float> logits = forward_.Prefill({sequence.prompt.data() + first, count}, first, last, prefill_step_);
  sequence.next_position += count;
  if (!forward_.status().ok()) return count;
  ++metrics_.prefill_chunks;
  ++metrics_.progress;
  metrics_.prompt_tokens += count;
  if (last && sequence.failure.ok()) FinishPrompt(sequence, logits, followed);
  return count;
}

uint32_t Engine::RunLayerChunk(Sequence& sequence, uint64_t most) {
  PrefillArena& arena = *sequence.arena;
  const int layer = arena.layer;
  const uint32_t first = arena.layer_position, prompt = sequence.prompt_tokens();
  const bool last = first + 1 == prompt, last_layer = layer + 1 == layout_.num_layers;
  const uint64_t longest = std::min<uint64_t>(most, options_.limits.prefill_chunk_tokens);
  const uint32_t count = last ? 1 : static_cast<uint32_t>(std::min<uint64_t>(longest, prompt - 1 - first));
  const TimelineSpan span(metrics_.timeline, Span::kPrefillChunk, static_cast<uint16_t>(layer), 0, 1);
  if (layer == 0) forward_.EmbedPrompt({sequence.prompt.data() + first, count}, arena.hidden(first));
  prefill_step_.Begin(sequence, first, count);
  forward_.PrefillLayer(layer, first, static_cast<int>(count), last, arena.hidden(first), prefill_step_);
  if (!forward_.status().ok()) return count;
  ++metrics_.prefill_chunks;
  ++metrics_.progress;
  if (last_layer) {
    metrics_.prompt_tokens += count;
    sequence.next_position += count;
  }
  arena.layer_position += count;
  if (!last || !sequence.failure.ok()) return count;
  if (sequence.working_set.has_value()) LoadPromptLayer(layout_, arena, layer, sequence);
  if (!last_layer) {
    ++arena.layer;
    arena.layer_position = 0;
    if (sequence.cached_tokens > 0) PullPrefix(sequence);
    return count;
  }
  const size_t residual_bytes = arena.bytes() - arena.layer_kv_bytes();
  metrics_.layered_prompts += 1;
  metrics_.layered_kv_peak_bytes = std::max<uint64_t>(metrics_.layered_kv_peak_bytes, arena.layer_kv_bytes());
  metrics_.layered_residual_peak_bytes = std::max<uint64_t>(metrics_.layered_residual_peak_bytes, residual_bytes);
  if (options_.on_prefilled_by_layer) options_.on_prefilled_by_layer(prompt, arena.layer_kv_bytes(), residual_bytes);
  const bool followed = HasFollowers(sequence);
  PlanPromptDraw(sequence, followed);
  FinishPrompt(sequence, forward_.PromptLogits(arena.hidden(first)), followed);
  return count;
}

void Engine::PlanPromptDraw(Sequence& sequence, bool followed) {
  if (!forward_.DrawsTokens()) return;
  draws_.assign(1, followed ? std::nullopt : DrawFor(sequence));
  forward_.PlanDraws(draws_);
}

void Engine::FinishPrompt(Sequence& sequence, std::span<float> logits, bool followed) {
  if (followed) {
    sequence.prompt_logits.assign(logits.begin(), logits.end());
    sequence.prompt_end = SteadyClock::now();
  }
  if (sequence.hand_over) {
    BeginHandOver(sequence);
  } else {
    if (!sequence.arena->by_layer()) LoadPrompt(layout_, *sequence.arena, sequence);
    GiveBackArena(sequence);
    BecomeDecoding(sequence, sequence.prompt_tokens());
  }
  if (sequence.generated.empty()) TakeToken(sequence, Drawn(0), logits);
  HandOverIfStored(sequence);
}

bool Engine::RunDecodeStep(std::span<Sequence* const> planned) {
  batch_.clear();
  // Prefill makes frames arrive, which can fail a sequence.
  lane_batch_.clear();
  for (Sequence* sequence : planned) {
    if (!sequence->failure.ok()) continue;
    (sequence->lane_state == Sequence::LaneState::kSeated ? lane_batch_ : batch_).push_back(sequence);
  }
  for (size_t first = 0, end = 0; first < lane_batch_.size(); first = end) {
    const std::shared_ptr<CacheLink> link = lane_batch_[first]->link;
    while (end < lane_batch_.size() && lane_batch_[end]->link == link) ++end;
    RunLaneStep(*link, {lane_batch_.data() + first, end - first});
    if (!forward_.status().ok()) return true;
  }
  for (size_t first = 0; first < batch_.size(); first += kMaxDecodeRows) {
    const std::span<Sequence* const> rows(batch_.data() + first,
                                          std::min<size_t>(kMaxDecodeRows, batch_.size() - first));
    const TimelineSpan span(metrics_.timeline, Span::kStep, kNoLayer, next_plan_, static_cast<uint32_t>(rows.size()));
    if (forward_.DrawsTokens()) {
      draws_.clear();
      for (const Sequence* sequence : rows) draws_.push_back(DrawFor(*sequence));
      forward_.PlanDraws(draws_);
    }
    decode_step_.Begin(next_plan_++, rows);
    const std::span<float> logits = forward_.Decode(decode_step_.token_ids(), decode_step_.positions(), decode_step_);
    decode_step_.Finish();
    if (!forward_.status().ok()) return true;
    const size_t vocab = logits.size() / rows.size();
    for (size_t row = 0; row < rows.size(); ++row) {
      Sequence& sequence = *rows[row];
      if (sequence.failure.ok() && sequence.next_position == sequence.known_tokens()) {
        TakeToken(sequence, Drawn(static_cast<int>(row)), logits.subspan(row * vocab, vocab));
      }
    }
    ++metrics_.decode_steps;
    ++metrics_.progress;
  }
  return !batch_.empty() || !lane_batch_.empty();
}

absl::Status Engine::PostLanePlan(CacheLink& link, std::span<Sequence* const> rows) {
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer,
                          AwaitSendBuffer(*transport_, link, rows.size() * sizeof(wire::PlanRow), options_.waits));
  auto* plan_rows = reinterpret_cast<wire::PlanRow*>(buffer.payload().data());
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sequence& sequence = *rows[i];
    plan_rows[i] = {.sequence_id = sequence.sequence_id,
                    .attach_epoch = sequence.attach_epoch,
                    .position = sequence.next_position,
                    .token_id = sequence.token_at(sequence.next_position),
                    .pool_slots = sequence.working_set->pool_slots(),
                    .grant_generation = 1,
                    .flags = static_cast<uint32_t>(sequence.seat)};
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kStepPlan;
  header.flags = wire::kPlanOnLane;
  header.plan = next_plan_++;
  header.row_count = static_cast<uint32_t>(rows.size());
  return link.channel()->Post(header, std::move(buffer));
}

// The engine waits for the GPU then, which waits for the cache rank's: no frame may wait for the engine.
absl::Status Engine::AwaitLeaving(CacheLink& link) {
  const auto give_up = SteadyClock::now() + options_.waits.timeout;
  transport_->Progress();
  while (link.channel()->sending()) {
    if (!link.alive()) return absl::UnavailableError("the cache rank is gone");
    if (SteadyClock::now() > give_up) return absl::DeadlineExceededError("the cache rank takes no frames");
    transport_->Wait(std::chrono::microseconds(200), std::chrono::microseconds(200));
  }
  return link.channel()->failed();
}

void Engine::RunLaneStep(CacheLink& link, std::span<Sequence* const> rows) {
  const TimelineSpan span(metrics_.timeline, Span::kStep, kNoLayer, next_plan_, static_cast<uint32_t>(rows.size()));
  lane_rows_.clear();
  for (const Sequence* sequence : rows) {
    std::optional<TokenDraw> draw = DrawFor(*sequence);
    lane_rows_.push_back({.seat = sequence->seat,
                          .token_id = sequence->token_at(sequence->next_position),
                          .position = sequence->next_position,
                          .draw = std::move(draw)});
  }
  if (const absl::Status posted = PostLanePlan(link, rows); !posted.ok()) return FailLane(link, posted);
  if (const absl::Status left = AwaitLeaving(link); !left.ok()) return FailLane(link, left);
  const absl::Status decoded = link.lane()->Decode(lane_rows_);
  transport_->Progress();  // a row may have been refused
  if (!decoded.ok()) return FailLane(link, decoded);
  ++metrics_.decode_steps;
  ++metrics_.lane_steps;
  ++metrics_.progress;
  for (size_t row = 0; row < rows.size(); ++row) {
    Sequence& sequence = *rows[row];
    if (!sequence.failure.ok()) continue;
    ++sequence.next_position;
    ++sequence.decode_steps;
    if (sequence.next_position != sequence.known_tokens()) continue;
    if (lane_rows_[row].draw.has_value()) {
      TakeToken(sequence, link.lane()->drawn_token(row), {});
    } else {
      TakeToken(sequence, std::nullopt, link.lane()->logits(row));
    }
  }
}

// Its sequences are attached again, through a link without a lane.
void Engine::FailLane(CacheLink& link, const absl::Status& why) {
  ++metrics_.lanes_failed;
  const auto until = SteadyClock::now() + kQuarantine;
  scheduler_.ForEach([&](Sequence& sequence) {
    if (sequence.link.get() != &link || sequence.lane_state == Sequence::LaneState::kNone) return;
    sequence.Fail(absl::UnavailableError(absl::StrCat("the lane to the cache rank has failed: ", why.message())),
                  /*can_retry=*/true);
    if (sequence.working_set.has_value()) quarantine_.emplace_back(until, *std::move(sequence.working_set));
    sequence.working_set.reset();
    sequence.lane_state = Sequence::LaneState::kNone;
    sequence.seat = -1;
  });
  links_.DistrustLane(link);
  link.channel()->Close();
  link.MarkDead();
}

void Engine::AskForSeats() {
  const auto now = SteadyClock::now();
  while (!quarantine_.empty() && quarantine_.front().first < now) quarantine_.pop_front();
  scheduler_.ForEach([&](Sequence& sequence) {
    if (sequence.lane_state != Sequence::LaneState::kWanted || !sequence.failure.ok()) return;
    if (!AskForSeat(sequence).ok()) LeaveLane(sequence);
  });
}

absl::Status Engine::AskForSeat(Sequence& sequence) {
  CacheLink& link = *sequence.link;
  sequence.seat = link.seats().Take(sequence.sequence_id);
  if (sequence.seat < 0) return absl::ResourceExhaustedError("all seats are taken");
  const std::vector<uint32_t> pages = sequence.working_set->PagesOfLists(link.lane()->shape().pages_per_list);
  const size_t bytes = pages.size() * sizeof(uint32_t);
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, AwaitSendBuffer(*transport_, link, bytes, options_.waits));
  std::memcpy(buffer.payload().data(), pages.data(), bytes);
  wire::FrameHeader header{};
  header.type = wire::FrameType::kSeat;
  header.sequence_id = sequence.sequence_id;
  header.attach_epoch = sequence.attach_epoch;
  header.apply_position = sequence.next_position;
  header.row_count = static_cast<uint32_t>(sequence.seat);
  WINNOW_RETURN_IF_ERROR(link.channel()->Post(header, std::move(buffer)));
  link.lane()->Seat(sequence.seat, pages);
  sequence.lane_state = Sequence::LaneState::kAsked;
  return absl::OkStatus();
}

void Engine::OnSeated(Sequence& sequence, const wire::FrameHeader& header) {
  const bool current = sequence.lane_state == Sequence::LaneState::kAsked &&
                       header.attach_epoch == sequence.attach_epoch &&
                       header.row_count == static_cast<uint32_t>(sequence.seat);
  if (!current) {
    ++metrics_.stale_frames;
  } else if ((header.flags & wire::kSeatGranted) != 0) {
    sequence.lane_state = Sequence::LaneState::kSeated;
  } else {
    LeaveLane(sequence);
  }
}

void Engine::LeaveLane(Sequence& sequence) {
  if (sequence.seat >= 0) sequence.link->seats().Free(sequence.seat, sequence.sequence_id);
  sequence.seat = -1;
  sequence.lane_state = Sequence::LaneState::kNone;
}

std::optional<uint32_t> Engine::Drawn(int row) const {
  if (!forward_.DrawsTokens() || !draws_[row].has_value()) return std::nullopt;
  return forward_.drawn_token(row);
}

std::optional<TokenDraw> Engine::DrawFor(const Sequence& sequence) const {
  // A known token that is computed again: whatever is drawn is dropped.
  if (sequence.next_position + 1 < sequence.known_tokens()) return TokenDraw();
  if (sequence.top_logprobs.has_value()) return std::nullopt;
  return sequence.sampler->DrawOf(static_cast<uint32_t>(sequence.generated.size()));
}

void Engine::TakeToken(Sequence& sequence, std::optional<uint32_t> drawn, std::span<float> logits) {
  const uint32_t index = static_cast<uint32_t>(sequence.generated.size());
  uint32_t id = 0;
  if (drawn.has_value()) {
    id = *drawn;
  } else {
    if (sequence.top_logprobs.has_value()) logits_copy_.assign(logits.begin(), logits.end());
    id = sequence.sampler->Sample(logits, index);
  }
  sequence.sampler->Observe(id);
  sequence.generated.push_back(id);
  ++metrics_.generation_tokens;

  v1::Token token;
  token.set_id(id);
  if (sequence.top_logprobs.has_value()) {
    FillLogprobs(logits_copy_, *sequence.top_logprobs, &token);
    sequence.with_logprobs.resize(index);
    sequence.with_logprobs.push_back(token);
  }
  ReportTokens(sequence, index, {&token, 1});

  const auto& eos = options_.eos_token_ids;
  const auto& stops = sequence.stopping.stop_token_ids();
  const bool stopped = (!sequence.stopping.ignore_eos() && std::find(eos.begin(), eos.end(), id) != eos.end()) ||
                       std::find(stops.begin(), stops.end(), id) != stops.end();
  if (stopped) {
    FinishSequence(sequence, v1::FINISH_REASON_STOP);
  } else if (sequence.generated.size() >= sequence.stopping.max_tokens()) {
    FinishSequence(sequence, v1::FINISH_REASON_LENGTH);
  } else if (sequence.hand_over && sequence.state == State::kDecoding) {
    BeginHandOver(sequence);
    HandOverIfStored(sequence);
  }
}

void Engine::ReportTokens(Sequence& sequence, uint32_t first_index, std::span<const v1::Token> tokens) {
  v1::DispatchResponse event;
  event.set_request_id(sequence.request_id);
  event.mutable_tokens()->set_first_index(first_index);
  event.mutable_tokens()->set_cached_prompt_tokens(sequence.cached_tokens);
  event.mutable_tokens()->mutable_tokens()->Assign(tokens.begin(), tokens.end());
  sequence.sink->Send(std::move(event));
}

v1::SelectionStats Engine::Stats(const Sequence& sequence) const {
  v1::SelectionStats stats;
  if (sequence.mass.count() > 0) {
    stats.set_captured_mass_mean(static_cast<float>(sequence.mass.mean()));
    stats.set_captured_mass_p5(static_cast<float>(sequence.mass.percentile(0.05)));
  }
  if (WaitsForVerdict(sequence.spec)) {
    if (sequence.mass_before.count() > 0) {
      stats.set_captured_mass_before_mean(static_cast<float>(sequence.mass_before.mean()));
      stats.set_captured_mass_before_p5(static_cast<float>(sequence.mass_before.percentile(0.05)));
    }
    stats.set_missed_top_k_corrections(sequence.missed_top_k_corrections);
    stats.set_widened_corrections(sequence.widened_corrections);
    stats.set_correction_rows(sequence.correction_rows);
  }
  stats.set_captured_mass_is_bound(sequence.mass_is_bound);
  stats.set_selection_lookups(sequence.selection_lookups);
  stats.set_selection_hits(sequence.selection_hits);
  stats.set_streamed_rows(sequence.streamed_rows);
  stats.set_streamed_bytes(sequence.streamed_bytes);
  stats.set_prefetched_rows(sequence.prefetched_rows);
  stats.set_context_tokens(sequence.known_tokens());
  if (sequence.working_set.has_value()) {
    const uint64_t resident = sequence.working_set->resident_rows() / sequence.working_set->num_lists();
    stats.set_resident_rows(static_cast<uint32_t>(std::min<uint64_t>(resident, sequence.known_tokens())));
  }
  stats.set_reattach_count(sequence.attach ? 1 : 0);
  stats.set_preempted_count(sequence.preempted_count);
  stats.set_decode_steps(sequence.decode_steps);
  return stats;
}

void Engine::FinishSequence(Sequence& sequence, v1::FinishReason reason) {
  v1::DispatchResponse event;
  event.set_request_id(sequence.request_id);
  event.mutable_finished()->set_reason(reason);
  *event.mutable_finished()->mutable_stats() = Stats(sequence);
  sequence.sink->Send(std::move(event));
  sequence.cancelled = true;  // nothing more to say; ReapSequences takes it out
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
    if (sequence.cancelled || !sequence.failure.ok()) finished_.push_back(&sequence);
  });
  for (Sequence* sequence : finished_) Retire(scheduler_.Remove(sequence));
}

void Engine::Retire(std::unique_ptr<Sequence> sequence) {
  // To the router a sequence that was handed over is another rank's.
  if (!sequence->cancelled && sequence->state != State::kHandedOver) {
    v1::DispatchResponse event;
    event.set_request_id(sequence->request_id);
    v1::DispatchResponse::Failed* failed = event.mutable_failed();
    failed->set_code(static_cast<uint32_t>(sequence->failure.code()));
    failed->set_message(std::string(sequence->failure.message()));
    failed->set_retryable(sequence->retryable);
    failed->set_sequence_lost(sequence->sequence_lost);
    ++metrics_.failed_sequences;
    sequence->sink->Send(std::move(event));
  }
  std::erase_if(reopen_, [&](const Reopen& entry) { return entry.sequence == sequence.get(); });
  GiveBackArena(*sequence);
  LetGoOfSource(*sequence);
  LeaveLane(*sequence);
  sequence->early_refill.clear();
  // A sequence that another rank may take over stays on its cache rank: detached when this rank's link ends, or fenced
  // by the attach.
  const bool keep = !sequence->cancelled && sequence->retryable;
  if (sequence->link == nullptr || sequence->attach_epoch == 0 || keep) return;
  v1::ReleaseSequenceRequest request;
  request.set_sequence_id(sequence->sequence_id);
  request.set_attach_epoch(sequence->attach_epoch);
  releasers_->Add([link = sequence->link, request, timeout = options_.control_timeout] {
    // When the cache rank cannot be reached it frees the sequence by itself: the link's end detaches it, and detached
    // ones expire.
    (void)link->Release(request, timeout);
  });
}

void Engine::UpdateGauges() {
  uint64_t rows = 0, queued_prompt_tokens = 0, working_set_bytes = 0, lane_sequences = 0;
  scheduler_.ForEach([&](Sequence& sequence) {
    queued_prompt_tokens += sequence.queued_prompt_tokens();
    lane_sequences += sequence.lane_state == Sequence::LaneState::kSeated;
    if (sequence.working_set.has_value()) rows += sequence.working_set->resident_rows();
    const bool takes_steps = sequence.state == State::kDecoding && !sequence.parked_since.has_value();
    if (takes_steps) working_set_bytes += sequence.working_set_bytes.value_or(0);
  });
  metrics_.parked_sequences = scheduler_.num_parked();
  metrics_.fast_working_set_bytes = working_set_bytes;
  metrics_.running_sequences = scheduler_.num_running();
  metrics_.waiting_sequences = scheduler_.num_waiting();
  metrics_.lane_sequences = lane_sequences;
  metrics_.working_set_rows = rows;
  metrics_.queued_prompt_tokens = queued_prompt_tokens;
  metrics_.slot_pages_used = slots_.num_pages() - slots_.free_pages();
  metrics_.prefill_kv_bytes = prefill_bytes_;
  metrics_.kv_sent_bytes = links_.sent_bytes();
  metrics_.kv_received_bytes = links_.received_bytes();
  metrics_.last_progress_unix_seconds =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void Engine::DistrustLink(CacheLink& link, const absl::Status& why) {
  ++metrics_.malformed_frames;
  scheduler_.ForEach([&](Sequence& sequence) {
    if (sequence.link.get() == &link) sequence.Fail(Annotate(why, "malformed frame from the cache rank"), true);
  });
  link.channel()->Close();
  link.MarkDead();
}

void Engine::OnFrame(Channel& channel, ReceivedFrame frame) {
  CacheLink* link = links_.Find(channel);
  if (link == nullptr) return;
  const wire::FrameHeader& header = frame.header();
  switch (header.type) {
    case wire::FrameType::kDelta:
      if (header.phase == wire::Phase::kPrefetch) break;  // of one sequence, outside of plans
      if (absl::Status status = decode_step_.OnDelta(*link, frame); !status.ok()) DistrustLink(*link, status);
      return;
    case wire::FrameType::kPartial:
      if (absl::Status status = decode_step_.OnPartial(*link, frame); !status.ok()) DistrustLink(*link, status);
      return;
    case wire::FrameType::kWatermark:
      OnWatermarks(*link, frame);
      return;
    default:
      break;
  }
  Sequence* sequence = scheduler_.Find([&](const Sequence& candidate) {
    return candidate.sequence_id == header.sequence_id && (candidate.link == nullptr || candidate.link.get() == link);
  });
  if (sequence == nullptr) {
    ++metrics_.stale_frames;
    return;
  }
  switch (header.type) {
    case wire::FrameType::kDelta:
      OnPrefetch(*link, *sequence, frame);
      return;
    case wire::FrameType::kRefill:
    case wire::FrameType::kRefillDone:
      if (sequence->state == State::kOpening) {
        sequence->early_refill.push_back(std::move(frame));
      } else if (header.attach_epoch == sequence->attach_epoch) {
        TakeRefill(*sequence, header, frame.payload());
      } else {
        ++metrics_.stale_frames;
      }
      return;
    case wire::FrameType::kSeated:
      OnSeated(*sequence, header);
      return;
    case wire::FrameType::kFenced: {
      if (sequence->state == State::kHandedOver) return ForgetHandedOver(header.sequence_id);
      ++metrics_.fenced_sequences;
      const bool taken_over = header.attach_epoch > sequence->attach_epoch;
      sequence->Fail(absl::AbortedError(taken_over ? "another rank has attached to the sequence"
                                                   : "the cache rank lost the sequence"),
                     /*can_retry=*/!taken_over, /*lost=*/!taken_over);
      return;
    }
    case wire::FrameType::kTransferFailed:
      sequence->Fail(absl::UnavailableError("the cache rank could not send rows"), true);
      return;
    default:
      DistrustLink(*link, absl::InvalidArgumentError(absl::StrCat("frame type ", static_cast<int>(header.type))));
  }
}

void Engine::OnPrefetch(CacheLink& link, Sequence& sequence, const ReceivedFrame& frame) {
  // Of another attachment: the pool that it was meant for is gone.
  if (sequence.state != State::kDecoding || frame.header().attach_epoch != sequence.attach_epoch) {
    ++metrics_.stale_frames;
    return;
  }
  const absl::StatusOr<uint32_t> rows = CommitPrefetch(layout_, frame, *sequence.working_set);
  if (!rows.ok()) return DistrustLink(link, rows.status());
  sequence.prefetched_rows += *rows;
  metrics_.prefetched_rows += *rows;
}

void Engine::OnWatermarks(CacheLink& link, const ReceivedFrame& frame) {
  const size_t count =
      std::min<size_t>(frame.header().row_count, frame.payload().size() / sizeof(wire::WatermarkEntry));
  const auto* entries = reinterpret_cast<const wire::WatermarkEntry*>(frame.payload().data());
  for (size_t i = 0; i < count; ++i) {
    link.set_fast_rows_bytes(entries[i].fast_rows_bytes);
    Sequence* sequence = scheduler_.Find([&](const Sequence& candidate) {
      return candidate.sequence_id == entries[i].sequence_id && candidate.attach_epoch == entries[i].attach_epoch;
    });
    if (sequence == nullptr) continue;
    sequence->watermark = std::max(sequence->watermark, entries[i].watermark);
    if (sequence->state == State::kDecoding) {
      sequence->working_set_bytes = entries[i].working_set_rows * layout_.row_bytes();
    }
    sequence->loaded_rows = entries[i].loaded_rows;
    HandOverIfStored(*sequence);
  }
}

void Engine::TakeRefill(Sequence& sequence, const wire::FrameHeader& header, std::span<const std::byte> payload) {
  if (sequence.state == State::kRefilling) return OnRefill(sequence, header, payload);
  if (sequence.state == State::kLoadingPrefix) return OnPrefix(sequence, header, payload);
  ++metrics_.stale_frames;
}

void Engine::OnPrefix(Sequence& sequence, const wire::FrameHeader& header, std::span<const std::byte> payload) {
  if (header.type == wire::FrameType::kRefillDone) {
    sequence.state = State::kPrefilling;
    return;
  }
  const size_t row_bytes = layout_.row_bytes();
  const size_t head_bytes = header.row_count * row_bytes;
  const bool is_wanted = !sequence.arena->by_layer() || header.layer_first == sequence.arena->layer;
  const bool fits = header.layer_first < layout_.num_layers && is_wanted &&
                    uint64_t{header.apply_position} + header.row_count <= sequence.cached_tokens &&
                    payload.size() == layout_.num_kv_heads * head_bytes;
  if (!fits) {
    DistrustLink(*sequence.link, absl::InvalidArgumentError(absl::StrCat("prefix rows of ", payload.size(), " bytes")));
    return;
  }
  PrefillArena& arena = *sequence.arena;
  for (int head = 0; head < layout_.num_kv_heads; ++head) {
    const std::byte* rows = payload.data() + head * head_bytes;
    std::byte* to = arena.row(header.layer_first, head, header.apply_position);
    if (!arena.on_device()) {
      std::memcpy(to, rows, head_bytes);
      continue;
    }
    for (size_t at = 0; at < head_bytes; at += row_bytes) slots_.WriteBeside(to + at, rows + at);
  }
}

void Engine::OnRefill(Sequence& sequence, const wire::FrameHeader& header, std::span<const std::byte> payload) {
  if (header.type == wire::FrameType::kRefillDone) {
    BecomeDecoding(sequence, sequence.next_position);
    // Everything known may have been computed already: then the next token comes from recomputing the last known
    // position, which max_restart_position made sure of.
    WINNOW_CHECK(sequence.next_position < sequence.known_tokens());
    return;
  }
  const size_t head_bytes = header.row_count * layout_.row_bytes();
  if (header.layer_first >= layout_.num_layers || payload.size() != layout_.num_kv_heads * head_bytes) {
    DistrustLink(*sequence.link, absl::InvalidArgumentError(absl::StrCat("refill of ", payload.size(), " bytes")));
    return;
  }
  for (int head = 0; head < layout_.num_kv_heads; ++head) {
    sequence.working_set->LoadRows(header.layer_first, head, header.apply_position, header.row_count,
                                   payload.data() + head * head_bytes, sequence.next_position);
  }
}

}  // namespace winnow
