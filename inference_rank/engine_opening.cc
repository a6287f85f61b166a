// How sequences are opened or attached on a cache rank, and take over cached prefixes.
#include <algorithm>

#include "common/base/check.h"
#include "common/selection/selection_proto.h"
#include "inference_rank/engine.h"

namespace winnow {
namespace {

using State = Sequence::State;
constexpr auto kReopenInterval = std::chrono::milliseconds(20);

}  // namespace

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

}  // namespace winnow
