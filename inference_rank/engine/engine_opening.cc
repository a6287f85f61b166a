// How sequences are opened or attached on a cache rank, and take over cached prefixes.
#include <algorithm>

#include "common/base/check.h"
#include "common/selection/selection_proto.h"
#include "inference_rank/engine/engine.h"
#include "inference_rank/sequence/sequence_spans.h"

namespace winnow {
namespace {

using State = Sequence::State;
constexpr auto kReopenInterval = std::chrono::milliseconds(20);

}  // namespace

// Opens or attaches on a control thread. The sequence stays where it is until OnOpened, whatever happens to it
// meanwhile.
void Engine::StartOpening(Sequence& sequence) {
  sequence.state = State::kOpening;
  if (sequence.spans) sequence.spans->Opening();
  openers_->Add([this, &sequence] {
    const TraceContext* const trace = sequence.spans ? &sequence.spans->context() : nullptr;
    absl::StatusOr<ShardCalls::Attached> opened = absl::UnknownError("");
    if (sequence.attach || sequence.resumes) {
      v1::AttachSequenceRequest request;
      request.set_sequence_id(sequence.sequence_id);
      // The position that the next token comes from: a decode step, or, where that is one of the prompt's, prefill.
      const uint32_t known = sequence.lacks_past() ? sequence.prompt_tokens() : sequence.known_tokens();
      request.set_max_restart_position(known - 1);
      request.set_wants_all_rows(sequence.slot_order == SlotOrder::kByPosition);
      request.set_prefix_salt(PrefixSaltOf(sequence));
      request.set_state_bytes(sequence.state_bytes());
      opened = calls_.Attach(sequence.places, std::move(request), trace);
    } else {
      v1::OpenSequenceRequest request;
      request.set_sequence_id(sequence.sequence_id);
      request.set_max_positions(sequence.max_positions);
      request.set_prompt_tokens(sequence.prompt_tokens());
      *request.mutable_sampling() = sequence.sampling_params;
      request.mutable_sampling()->clear_constraint();  // which may be long, and which a router sends with each attempt
      // Rows of a prefix are of no use without the state behind it, which is not kept with them.
      if (!sequence.has_state()) {
        request.mutable_prompt_token_ids()->Assign(sequence.prompt.begin(), sequence.prompt.end());
      }
      request.set_prefix_salt(PrefixSaltOf(sequence));
      request.set_state_bytes(sequence.state_bytes());
      if (sequence.skips_prefix_cache) request.set_max_cached_tokens(0);
      opened = calls_.Open(sequence.places, sequence.spec, std::move(request), trace);
    }
    mailbox_.Put([this, &sequence, opened = std::move(opened)] { OnOpened(sequence, opened); });
  });
}

std::string Engine::PrefixSaltOf(const Sequence& sequence) const {
  // Positions whose logits are wanted are computed in pieces of their own, whose rows in the last layer are not to the
  // bit those of others.
  return absl::StrCat(sequence.prompt_scores.has_value() ? "scored," : "", prefix_salt_, sequence.tenant);
}

// What is full is tried again for a while.
void Engine::OnNotOpened(Sequence& sequence, const absl::Status& why) {
  const auto entry =
      std::find_if(reopen_.begin(), reopen_.end(), [&](const Reopen& e) { return e.sequence == &sequence; });
  WINNOW_CHECK(entry != reopen_.end());
  sequence.shards.clear();  // nothing to release there
  sequence.state = State::kWaiting;
  const auto now = std::chrono::steady_clock::now();
  if (absl::IsResourceExhausted(why) && now < entry->give_up) {
    entry->at = now + kReopenInterval;
    return;
  }
  reopen_.erase(entry);
  // A number that is taken is that of a call whose undoing is still under way: the request begins anew with another.
  const bool lost = absl::IsNotFound(why) || absl::IsAlreadyExists(why);
  sequence.Fail(why, lost || absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why), lost);
}

void Engine::OnOpened(Sequence& sequence, const absl::StatusOr<ShardCalls::Attached>& opened) {
  if (!opened.ok()) return OnNotOpened(sequence, opened.status());
  std::erase_if(reopen_, [&](const Reopen& entry) { return entry.sequence == &sequence; });
  std::vector<ShardLink> shards = opened->shards;
  for (size_t i = 0; i < sequence.shards.size(); ++i) {
    shards[i].working_set_bytes = sequence.shards[i].working_set_bytes;  // what it needed before it was preempted
  }
  sequence.shards = std::move(shards);
  sequence.state = State::kWaiting;  // one that is opening does not leave, whatever is wrong with it
  // Who looked for the sequences of a link that has ended did not find this one, and nothing will come for it.
  const bool has_links = std::all_of(sequence.shards.begin(), sequence.shards.end(),
                                     [](const ShardLink& shard) { return shard.link->alive(); });
  if (!has_links) return sequence.Fail(absl::UnavailableError("the cache rank is gone"), true);
  // Nor does anything come for one that another rank has attached meanwhile.
  std::erase_if(sequence.early_frames, [&](const auto& early) {
    const auto& [link, frame] = early;
    if (frame.header().type != wire::FrameType::kFenced) return false;
    OnFenced(*link, sequence, frame.header());
    return true;
  });
  if (!sequence.failure.ok()) return;
  if (sequence.trace && FindPeerGroup(sequence) != nullptr) {
    return sequence.Fail(absl::UnimplementedError("winnow.trace: this request's steps would go from GPU to GPU, where "
                                                  "nobody hears which rows are selected"),
                         /*can_retry=*/false);
  }
  const bool resumed = std::exchange(sequence.resumes, false);
  if (resumed) {
    if (!std::exchange(sequence.forked, false)) ++metrics_.resumed_sequences;
  } else if (sequence.attach) {
    ++metrics_.reattached_sequences;
  }
  // Of a new sequence, and of one whose prompt is not complete: where the stored part of that ends.
  const uint32_t restart = opened->position;
  sequence.next_position = restart;
  for (ShardLink& shard : sequence.shards) shard.watermark = restart;
  sequence.watermark = restart;
  sequence.sent_state_position = sequence.stored_state_position = restart;
  const bool attached = resumed || sequence.attach;
  const bool computes_prompt = restart < sequence.prompt_tokens();
  if (sequence.spans) sequence.spans->Opened(restart, computes_prompt);
  BeginSampling(sequence);
  // It was lost between its last token and the word that it is over.
  if (const auto end = EndOf(sequence)) return FinishSequence(sequence, *end);
  if (computes_prompt) {
    BeginPrompt(sequence, *opened, attached);
  } else if (attached && restart < sequence.known_tokens()) {
    GiveBackArena(sequence);
    if (sequence.hand_over) {
      BeginHandOver(sequence);
      return HandOverIfStored(sequence);
    }
    sequence.state = State::kRefilling;
    sequence.refills_due = sequence.shards.size();
  } else {
    return sequence.Fail(absl::InternalError(absl::StrCat("the cache rank claims ", restart,
                                                          " positions of a sequence with ", sequence.prompt_tokens(),
                                                          " prompt tokens and ", sequence.known_tokens(), " in all")),
                         false);
  }
  for (auto& [link, frame] : std::exchange(sequence.early_frames, {})) {
    if (const ShardLink* shard = sequence.FindShard(*link); shard != nullptr)
      TakeRefill(sequence, *shard, std::move(frame));
  }
}

// Behind what is stored of it.
void Engine::BeginPrompt(Sequence& sequence, const ShardCalls::Attached& opened, bool attached) {
  // A sequence that resumes took no arena: it needs one where decoding cannot restart at an earlier anchor.
  if (!sequence.arena.has_value()) {
    const size_t needed = options_.limits.prefill.BytesNeeded(layout_, sequence.prompt_tokens());
    const absl::Status status =
        needed > FreePrefillBytes() ? absl::ResourceExhaustedError("no prefill memory is free") : TakeArena(sequence);
    sequence.state = State::kWaiting;
    if (!status.ok())
      return sequence.Fail(Annotate(status, "the rest of a preempted sequence's prompt must be computed again"), true);
  }
  sequence.stored_tokens = opened.position;
  sequence.cached_tokens = opened.cached_tokens;
  if (attached) {
    metrics_.kept_prompt_tokens += opened.position;
  } else {
    metrics_.cached_prompt_tokens += opened.position;
    scheduler_.CreditCachedTokens(sequence, opened.position);  // who attaches is not charged for its prompt
  }
  if (opened.position == 0) {
    sequence.state = State::kPrefilling;
    return;
  }
  const uint32_t resident = ResidentPrefixEnd(sequence);
  CountResident(resident);
  if (resident < opened.position) ChoosePrefixWay(sequence);
  PullPrefix(sequence);
}

void Engine::PullPrefix(Sequence& sequence) {
  int first_layer = 0, num_layers = layout_.num_layers;
  if (sequence.arena->by_layer()) {
    sequence.arena->layer_position = sequence.stored_tokens;
    first_layer = sequence.arena->layer;
    num_layers = 1;
  }
  const uint32_t resident = ResidentPrefixEnd(sequence);
  for (int i = 0; resident > 0 && i < num_layers; ++i) {
    sequence.working_set->CopyShared(first_layer + i, resident, *sequence.arena);
  }
  if (resident == sequence.stored_tokens) {
    sequence.state = State::kPrefilling;
    return;
  }
  sequence.state = State::kLoadingPrefix;
  sequence.prefix_asked = std::chrono::steady_clock::now();
  sequence.refills_due = std::count_if(sequence.shards.begin(), sequence.shards.end(), [&](const ShardLink& shard) {
    return num_layers > 1 || shard.shard.HasLayer(first_layer);
  });
  ShardCalls::PrefixRows rows{.first = resident, .end = sequence.stored_tokens};
  if (sequence.remote_prefix.has_value()) {
    rows.sinks = sequence.remote_prefix->choice().sinks;
    rows.first = sequence.remote_prefix->choice().first_row;
    UpdatePrefixState(sequence);
  }
  PullRows(sequence, first_layer, num_layers, rows);
}

void Engine::PullRows(const Sequence& sequence, int first_layer, int num_layers, const ShardCalls::PrefixRows& rows) {
  openers_->Add([this, shards = sequence.shards, id = sequence.sequence_id, first_layer, num_layers, rows] {
    const absl::Status pushed = calls_.PushPrefix(shards, id, first_layer, num_layers, rows);
    if (pushed.ok()) return;
    mailbox_.Put([this, pushed, id, shard = shards.front()] {
      Sequence* sequence = scheduler_.Find([&](const Sequence& other) {
        return other.sequence_id == id && other.is_attached() &&
               other.shards.front().attach_epoch == shard.attach_epoch;
      });
      if (sequence != nullptr) sequence->Fail(pushed, /*can_retry=*/true);
    });
  });
}

}  // namespace winnow
