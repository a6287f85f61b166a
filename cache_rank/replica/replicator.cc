#include "cache_rank/replica/replicator.h"

#include <algorithm>
#include <utility>

#include "cache_rank/replica/replica_rows.h"

namespace winnow {
namespace {

// Replicas that are opened or catch up on one cache rank at a time.
constexpr int kMostCatchingUp = 2;

// A target that no copy needs is let go of after so long, whether or not it has answered.
constexpr std::chrono::seconds kUnusedTarget{5};

std::string KeyOf(const v1::Identity& rank) {
  return absl::StrCat(rank.address(), "#", rank.incarnation());
}

}  // namespace

absl::Status Replicator::Keep(uint64_t sequence_id, const v1::Identity* replica, Time now) {
  const auto found = by_id_.find(sequence_id);
  Copy* copy = found == by_id_.end() ? nullptr : found->second;
  const std::string key = replica == nullptr ? std::string() : KeyOf(*replica);
  if (copy != nullptr && copy->target == key) return absl::OkStatus();
  if (copy != nullptr && copy->phase != Phase::kWaiting) {
    if (const auto old = targets_.find(copy->target); old != targets_.end()) {
      old->second.releases.push_back(sequence_id);
    }
  }
  if (replica == nullptr) {
    Erase({sequence_id});
    return absl::OkStatus();
  }
  if (copy == nullptr) {
    if (copies_.size() >= kMaxCopies) {
      return absl::ResourceExhaustedError(absl::StrCat("replicas of ", kMaxCopies, " sequences are kept already"));
    }
    copies_.push_back(std::make_unique<Copy>());
    copy = by_id_[sequence_id] = copies_.back().get();
    copy->sequence_id = sequence_id;
  }
  copy->target = key;
  copy->phase = Phase::kWaiting;
  copy->sent = copy->stored = 0;
  replicas_lost_ = true;
  copy->since = copy->not_before = now;
  Target& target = targets_[key];
  target.identity = *replica;
  target.last_used = now;
  return absl::OkStatus();
}

void Replicator::Leave(uint64_t sequence_id) {
  const auto found = by_id_.find(sequence_id);
  if (found == by_id_.end()) return;
  const Copy& copy = *found->second;
  const auto target = targets_.find(copy.target);
  if (copy.phase != Phase::kWaiting && target != targets_.end()) target->second.detaches.push_back(sequence_id);
  Erase({sequence_id});
  replicas_lost_ = true;
}

void Replicator::RunOnce(SequenceStore& store, const v1::Fingerprint& fingerprint, Executor* team, bool busy,
                         Time now) {
  if (replicas_lost_) PublishGauges(store);
  for (auto& [key, target] : targets_) {
    if (target.unanswered >= options_.messages_ahead || (busy && now < target.next_message)) continue;
    v1::FeedRequest request = NextRequest(store, key, target, team, now);
    if (request.updates().empty()) continue;
    if (target.feed == nullptr) {
      Connect(key, target);
      *request.mutable_fingerprint() = fingerprint;
    }
    *request.mutable_identity() = options_.identity;
    target.feed->Send(std::move(request));
    ++target.unanswered;
    target.last_used = now;
    target.next_message = now + options_.busy_interval;
  }
}

v1::FeedRequest Replicator::NextRequest(SequenceStore& store, const std::string& key, Target& target, Executor* team,
                                        Time now) {
  v1::FeedRequest request;
  const auto add = [&request](uint64_t sequence_id) -> v1::ReplicaUpdate& {
    v1::ReplicaUpdate& update = *request.add_updates();
    update.set_sequence_id(sequence_id);
    return update;
  };
  for (const uint64_t id : std::exchange(target.releases, {})) add(id).set_release(true);
  for (const uint64_t id : std::exchange(target.detaches, {})) add(id).set_detach(true);
  std::vector<uint64_t> gone;
  CachedSequence* behind = nullptr;  // the first that is far behind
  int catching_up = 0;
  size_t bytes = 0;
  for (const auto& copy : copies_) {
    if (copy->target != key) continue;
    CachedSequence* const sequence = store.Find(copy->sequence_id);
    if (sequence == nullptr || sequence->is_replica) {
      if (!copy->seen) continue;
      if (copy->phase != Phase::kWaiting) add(copy->sequence_id).set_release(true);
      gone.push_back(copy->sequence_id);
      continue;
    }
    copy->seen = true;
    copy->sent = std::min(copy->sent, std::exchange(sequence->rewound_to, UINT32_MAX));
    const uint32_t watermark = sequence->kv.watermark();
    if (copy->phase == Phase::kOpening) ++catching_up;
    if (copy->phase == Phase::kWaiting) {
      if (now < copy->not_before || catching_up >= kMostCatchingUp) continue;
      if (WaitsForPrompt(store, *copy, *sequence)) continue;
      *add(copy->sequence_id).mutable_opening() = OpeningOf(*sequence);
      copy->phase = Phase::kOpening;
      ++catching_up;
    } else if (copy->phase == Phase::kOpen && copy->sent < watermark) {
      if (watermark - copy->sent > options_.near_tokens) {
        ++catching_up;
        if (behind == nullptr) behind = sequence;
      } else if (bytes < options_.message_bytes) {
        bytes += AddRows(*sequence, *copy, options_.message_bytes - bytes, team, &request);
      }
    }
  }
  if (behind != nullptr && bytes < options_.message_bytes) {
    AddRows(*behind, *by_id_.at(behind->id), options_.message_bytes - bytes, team, &request);
  }
  Erase(gone);
  return request;
}

size_t Replicator::AddRows(CachedSequence& sequence, Copy& copy, size_t room_bytes, Executor* team,
                           v1::FeedRequest* request) {
  const auto most = static_cast<uint32_t>(std::max<size_t>(1, room_bytes / sequence.layout.token_bytes()));
  const uint32_t count = std::min(most, sequence.kv.watermark() - copy.sent);
  v1::ReplicaRows rows = RowsOf(sequence, copy.sent, count, team);
  // Found by the copying, maybe: there they would have checksums that hold.
  if (sequence.kv.is_damaged()) return 0;
  v1::ReplicaUpdate& update = *request->add_updates();
  update.set_sequence_id(copy.sequence_id);
  *update.mutable_rows() = std::move(rows);
  copy.sent += count;
  const size_t bytes = update.rows().kv_rows().size();
  metrics_->replica_sent_bytes.Add(bytes);
  return bytes;
}

bool Replicator::WaitsForPrompt(const SequenceStore& store, const Copy& copy, const CachedSequence& sequence) const {
  if (sequence.prompt_token_ids == nullptr) return false;
  return std::any_of(copies_.begin(), copies_.end(), [&](const std::unique_ptr<Copy>& other) {
    if (other->phase == Phase::kWaiting || other->target != copy.target) return false;
    if (other->stored >= sequence.prompt_tokens) return false;
    const CachedSequence* const its = store.Find(other->sequence_id);
    return its != nullptr && its->prompt_token_ids == sequence.prompt_token_ids;
  });
}

void Replicator::Connect(const std::string& key, Target& target) {
  target.number = next_feed_++;
  target.feed = std::make_unique<ReplicaFeed>(
      options_.channels(target.identity.address()),
      ReplicaFeed::Callbacks{
          .on_answer =
              [this, key, number = target.number](v1::FeedResponse answer) {
                options_.post([this, key, number, answer = std::move(answer)] { OnAnswer(key, number, answer); });
              },
          .on_end = [this, key, number = target.number](
                        const grpc::Status&) { options_.post([this, key, number] { OnEnd(key, number); }); }});
}

void Replicator::OnAnswer(const std::string& key, uint64_t feed, const v1::FeedResponse& answer) {
  const auto target = targets_.find(key);
  if (target == targets_.end() || target->second.number != feed) return;
  --target->second.unanswered;
  const Time now = std::chrono::steady_clock::now();
  for (const v1::ReplicaState& state : answer.states()) OnState(key, state, now);
}

void Replicator::OnState(const std::string& key, const v1::ReplicaState& state, Time now) {
  const auto found = by_id_.find(state.sequence_id());
  if (found == by_id_.end() || found->second->target != key || found->second->phase == Phase::kWaiting) return;
  Copy& copy = *found->second;
  switch (static_cast<absl::StatusCode>(state.code())) {
    case absl::StatusCode::kOk:
      copy.stored = state.stored_positions();
      if (std::exchange(copy.phase, Phase::kOpen) == Phase::kOpening) copy.sent = copy.stored;
      return;
    // It goes on there.
    case absl::StatusCode::kAlreadyExists:
      return Erase({copy.sequence_id});
    default:
      metrics_->replicas_refused.Add(1);
      [[fallthrough]];
    // The router has freed it, which is no refusal: its sequence is about to go.
    case absl::StatusCode::kNotFound:
      copy.phase = Phase::kWaiting;
      copy.sent = copy.stored = 0;
      replicas_lost_ = true;
      copy.not_before = now + options_.retry;
  }
}

void Replicator::OnEnd(const std::string& key, uint64_t feed) {
  const auto found = targets_.find(key);
  if (found == targets_.end() || found->second.number != feed) return;
  Target& target = found->second;
  target.feed.reset();
  target.unanswered = 0;
  target.releases.clear();  // the end of the stream has detached them
  target.detaches.clear();
  const Time not_before = std::chrono::steady_clock::now() + options_.retry;
  for (const auto& copy : copies_) {
    if (copy->target != key) continue;
    copy->phase = Phase::kWaiting;
    copy->sent = copy->stored = 0;
    replicas_lost_ = true;
    copy->not_before = not_before;
  }
}

void Replicator::Tick(const SequenceStore& store, Time now) {
  std::vector<uint64_t> never_came;
  for (const auto& copy : copies_) {
    if (const auto target = targets_.find(copy->target); target != targets_.end()) target->second.last_used = now;
    if (copy->seen || now - copy->since <= options_.open_patience) continue;
    const CachedSequence* const sequence = store.Find(copy->sequence_id);
    if (sequence == nullptr || sequence->is_replica) never_came.push_back(copy->sequence_id);
  }
  Erase(never_came);
  std::erase_if(targets_, [&](const auto& entry) { return now - entry.second.last_used > kUnusedTarget; });
  PublishGauges(store);
}

void Replicator::PublishGauges(const SequenceStore& store) {
  replicas_lost_ = false;
  uint64_t fed = 0, copying = 0, missing = 0, lag = 0;
  for (const auto& copy : copies_) {
    const CachedSequence* const sequence = store.Find(copy->sequence_id);
    if (sequence == nullptr || sequence->is_replica) continue;
    const bool has_prompt = copy->stored >= std::max(sequence->prompt_tokens, 1u);
    ++(copy->phase != Phase::kOpen ? missing : has_prompt ? fed : copying);
    const uint32_t watermark = sequence->kv.watermark();
    lag += watermark - std::min(watermark, copy->stored);
  }
  metrics_->replicas_fed.Set(fed);
  metrics_->replicas_copying.Set(copying);
  metrics_->replicas_missing.Set(missing);
  metrics_->replica_lag_tokens.Set(lag);
}

void Replicator::Erase(const std::vector<uint64_t>& sequence_ids) {
  if (sequence_ids.empty()) return;
  const auto is_gone = [&](uint64_t id) {
    return std::find(sequence_ids.begin(), sequence_ids.end(), id) != sequence_ids.end();
  };
  for (const uint64_t id : sequence_ids) by_id_.erase(id);
  std::erase_if(copies_, [&](const std::unique_ptr<Copy>& copy) { return is_gone(copy->sequence_id); });
}

}  // namespace winnow
