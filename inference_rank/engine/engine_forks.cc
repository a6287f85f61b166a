// How sequences begin as forks of others: samples of one prompt at its end, and forks of what is being decoded.
//
// A fork is made on the cache rank, while the source is held so that both ranks agree on its position; then it is a
// sequence like one that was preempted, which waits for slots and attaches. What cannot be forked (any more) is opened
// on its own, which costs a prefill and gives the same tokens.
#include <algorithm>

#include "inference_rank/engine/engine.h"
#include "inference_rank/sequence/sequence_spans.h"

namespace winnow {
namespace {

using State = Sequence::State;

// Followers are submitted right behind their source. One that has not come by then, after the end of the prompt, is
// opened on its own.
constexpr auto kFollowerPatience = std::chrono::milliseconds(1000);

bool IsPrefixOf(const std::vector<uint32_t>& prefix, const std::vector<uint32_t>& tokens) {
  return prefix.size() <= tokens.size() && std::equal(prefix.begin(), prefix.end(), tokens.begin());
}

bool MayFork(const Sequence& source, const Sequence& fork) {
  if (!source.failure.ok() || (source.cancelled && !source.held())) return false;
  if (fork.holds_source) return true;
  if (source.places.size() != fork.places.size()) return false;
  return source.prompt == fork.prompt && source.spec == fork.spec && source.hand_over == fork.hand_over &&
         IsPrefixOf(fork.generated, source.generated);
}

// The shards of the source before the fork has any of its own.
std::vector<ShardLink> PlacesOf(const Sequence& source) {
  std::vector<ShardLink> shards;
  for (const ShardLink& shard : source.shards) shards.push_back({.link = shard.link, .shard = shard.shard});
  return shards;
}

// Its prompt is not computed yet.
bool IsBeforePromptEnd(const Sequence& source) {
  return (source.state == State::kAwaitingFork && !source.holds_source) ||
         (source.state == State::kWaiting && !source.resumes) ||
         (source.state == State::kOpening && !source.is_attached()) || source.state == State::kLoadingPrefix ||
         source.state == State::kPrefilling;
}

}  // namespace

bool Engine::HasFollowers(const Sequence& source) {
  return source.followers_due > 0 || scheduler_.Find([&](const Sequence& other) {
    return other.state == State::kAwaitingFork && other.fork_of == source.sequence_id && other.generated.empty();
  }) != nullptr;
}

// A later attempt at the source may wait behind the one that is held.
Sequence* Engine::SourceOf(const Sequence& fork) {
  return scheduler_.Find([&](const Sequence& other) {
    return other.sequence_id == fork.fork_of && (!fork.holds_source || other.forks_under_way > 0);
  });
}

void Engine::ServeForks() {
  std::vector<Sequence*> forks;
  const auto now = std::chrono::steady_clock::now();
  scheduler_.ForEach([&](Sequence& sequence) {
    if (sequence.state == State::kAwaitingFork && sequence.failure.ok() && !sequence.cancelled) {
      forks.push_back(&sequence);
    }
  });
  std::sort(forks.begin(), forks.end(), [](const Sequence* a, const Sequence* b) { return a->arrival < b->arrival; });
  for (Sequence* fork : forks) ServeFork(*fork);
  scheduler_.ForEach([&](Sequence& sequence) {
    if (sequence.prompt_logits.empty()) return;
    if (sequence.followers_due > 0 && now - sequence.prompt_end < kFollowerPatience) return;
    sequence.prompt_logits = {};
    HandOverIfStored(sequence);
  });
}

void Engine::ServeFork(Sequence& fork) {
  Sequence* source = SourceOf(fork);
  if (source == nullptr || !MayFork(*source, fork)) return OpenAlone(fork);
  const bool at_prompt_end = !source->prompt_logits.empty() && fork.generated.empty() && !fork.holds_source;
  if (at_prompt_end) {
    if (!std::exchange(fork.fork_at_current_token, false) && source->followers_due > 0) --source->followers_due;
    fork.shards = PlacesOf(*source);
    BeginSampling(fork);
    std::vector<float> logits = source->prompt_logits;
    TakeToken(fork, /*drawn=*/std::nullopt, logits);
    if (fork.cancelled) return;  // it has ended with its first token
    fork.holds_source = true;
    ++source->forks_under_way;
  } else if (!fork.holds_source) {
    if (IsBeforePromptEnd(*source)) return;
    if (!fork.fork_at_current_token) return OpenAlone(fork);
    const bool is_at_rest = source->state == State::kDecoding || (source->state == State::kWaiting && source->resumes);
    if (!is_at_rest) return;
    fork.holds_source = true;
    ++source->forks_under_way;
  }
  if (source->steps_under_way > 0 || source->watermark < source->next_position) return;
  if (!StateIsStored(*source)) return;
  if (fork.fork_at_current_token) TakeCurrentTokens(fork, *source);
  if (!fork.cancelled) StartFork(fork, *source);
}

void Engine::OpenAlone(Sequence& fork) {
  LetGoOfSource(fork);
  const uint64_t lost = fork.fork_of;
  fork.fork_of = 0;
  fork.shards.clear();
  fork.state = State::kWaiting;
  const Sequence* source = scheduler_.Find([&](const Sequence& other) { return other.sequence_id == lost; });
  if (source != nullptr && !source->prompt_logits.empty()) return;
  // Others that wait for the same prompt share this one's.
  scheduler_.ForEach([&](Sequence& other) {
    if (other.state == State::kAwaitingFork && other.fork_of == lost && !other.holds_source &&
        !other.fork_at_current_token) {
      other.fork_of = fork.sequence_id;
    }
  });
}

void Engine::TakeCurrentTokens(Sequence& fork, const Sequence& source) {
  const size_t known = fork.generated.size();
  const size_t count = std::min<size_t>(source.generated.size(), fork.stopping.max_tokens());
  fork.generated.assign(source.generated.begin(), source.generated.begin() + static_cast<ptrdiff_t>(count));
  fork.with_logprobs = source.with_logprobs;
  std::vector<v1::Token> tokens;
  for (size_t i = known; i < count; ++i) {
    tokens.emplace_back();
    if (fork.top_logprobs.has_value() && i < source.with_logprobs.size()) tokens.back() = source.with_logprobs[i];
    tokens.back().set_id(fork.generated[i]);
  }
  if (!tokens.empty()) ReportTokens(fork, static_cast<uint32_t>(known), tokens);
  if (count >= fork.stopping.max_tokens()) FinishSequence(fork, v1::FINISH_REASON_LENGTH);
}

void Engine::StartFork(Sequence& fork, Sequence& source) {
  fork.state = State::kOpening;
  fork.shards = PlacesOf(source);
  fork.next_position = source.next_position;
  v1::ForkSequenceRequest request;
  request.set_source_sequence_id(source.sequence_id);
  request.set_sequence_id(fork.sequence_id);
  request.set_max_positions(fork.max_positions);
  if (fork.spans) fork.spans->Opening();
  openers_->Add([this, &fork, shards = source.shards, position = source.next_position, request] {
    const TraceContext* const trace = fork.spans ? &fork.spans->context() : nullptr;
    const absl::StatusOr<ShardCalls::Attached> forked = calls_.Fork(shards, request, position, trace);
    mailbox_.Put([this, &fork, forked] { OnForked(fork, forked); });
  });
}

void Engine::OnForked(Sequence& fork, const absl::StatusOr<ShardCalls::Attached>& forked) {
  LetGoOfSource(fork);
  fork.state = State::kWaiting;
  switch (forked.status().code()) {
    case absl::StatusCode::kOk:
      break;
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
      return OpenAlone(fork);
    default:
      // It may be there all the same: another attempt takes another id.
      fork.shards.clear();
      return fork.Fail(forked.status(), /*can_retry=*/true, /*lost=*/true);
  }
  fork.shards = forked->shards;
  for (ShardLink& shard : fork.shards) shard.watermark = forked->position;
  fork.watermark = forked->position;
  fork.stored_state_position = forked->position;  // its source waited for that
  ++metrics_.forked_sequences;
  metrics_.forked_tokens += forked->position;
  fork.fork_of = 0;
  fork.forked = fork.resumes = true;
  if (!fork.hand_over) return;
  fork.state = State::kHandingOver;
  HandOverIfStored(fork);
}

void Engine::LetGoOfSource(Sequence& fork) {
  if (!fork.holds_source) return;
  Sequence* const source = SourceOf(fork);
  fork.holds_source = false;
  if (source == nullptr) return;
  --source->forks_under_way;
  HandOverIfStored(*source);
}

}  // namespace winnow
