#include "cache_rank/sequence_store.h"

#include <utility>

namespace winnow {
namespace {

absl::Status NotFound(uint64_t sequence_id) {
  return absl::NotFoundError(absl::StrCat("sequence ", sequence_id, " is not on this cache rank"));
}
absl::Status AlreadyExists(uint64_t sequence_id) {
  return absl::AlreadyExistsError(absl::StrCat("sequence ", sequence_id, " exists already"));
}

}  // namespace

absl::StatusOr<CachedSequence*> SequenceStore::Open(uint32_t channel, const OpenOptions& options) {
  if (Find(options.sequence_id) != nullptr) return AlreadyExists(options.sequence_id);
  if (options.max_positions == 0 || options.prompt_tokens > options.max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_positions is ", options.max_positions, ", prompt_tokens ", options.prompt_tokens));
  }
  WINNOW_ASSIGN_OR_RETURN(
      SequenceKv kv, SequenceKv::Create(pool_, kernels_, layout_, options.max_positions, IndexLayoutFor(options.spec),
                                        KvRetention::Of(options.spec, layout_)));
  auto sequence = std::make_unique<CachedSequence>(options.sequence_id, options.spec, std::move(kv), layout_,
                                                   options.prompt_tokens);
  sequence->sampling = options.sampling;
  sequence->channel = channel;
  ++active_;
  return (sequences_[options.sequence_id] = std::move(sequence)).get();
}

absl::StatusOr<CachedSequence*> SequenceStore::Attach(uint32_t channel, uint64_t sequence_id, uint32_t max_restart) {
  CachedSequence* sequence = Find(sequence_id);
  if (sequence == nullptr) return NotFound(sequence_id);
  WINNOW_RETURN_IF_ERROR(sequence->Restart(sequence->RestartPosition(max_restart)));
  if (!sequence->attached()) ++active_;
  sequence->channel = channel;
  ++sequence->attach_epoch;
  return sequence;
}

absl::StatusOr<CachedSequence*> SequenceStore::Fork(uint32_t channel, uint64_t source_id, uint64_t sequence_id,
                                                    uint32_t max_positions) {
  const CachedSequence* source = Find(source_id);
  if (source == nullptr) return NotFound(source_id);
  if (Find(sequence_id) != nullptr) return AlreadyExists(sequence_id);
  const uint32_t position = source->RestartPosition(source->kv.watermark());
  if (position < source->kv.watermark()) {
    return absl::FailedPreconditionError(
        absl::StrCat("sequence ", source_id, " is not complete up to its watermark yet"));
  }
  WINNOW_ASSIGN_OR_RETURN(SequenceKv kv, source->kv.Fork(max_positions));
  auto fork =
      std::make_unique<CachedSequence>(sequence_id, source->spec, std::move(kv), layout_, source->prompt_tokens);
  fork->sampling = source->sampling;
  fork->journal = source->journal;
  fork->journal.Truncate(position);
  fork->channel = channel;
  fork->layers = source->layers;
  WINNOW_RETURN_IF_ERROR(fork->Restart(position));
  ++active_;
  return (sequences_[sequence_id] = std::move(fork)).get();
}

absl::Status SequenceStore::Release(uint64_t sequence_id, uint32_t attach_epoch) {
  const auto found = sequences_.find(sequence_id);
  if (found == sequences_.end()) return absl::OkStatus();
  if (found->second->attach_epoch != attach_epoch) {
    return absl::AbortedError(absl::StrCat("sequence ", sequence_id, " is at attach_epoch ",
                                           found->second->attach_epoch, ", not ", attach_epoch));
  }
  if (found->second->attached()) --active_;
  sequences_.erase(found);
  return absl::OkStatus();
}

void SequenceStore::Detach(CachedSequence& sequence, Time now) {
  if (!sequence.attached()) return;
  sequence.channel = 0;
  sequence.detached_at = now;
  sequence.seat = {};
  --active_;
}

size_t SequenceStore::DetachChannel(uint32_t channel, Time now) {
  size_t count = 0;
  for (auto& [id, sequence] : sequences_) {
    if (sequence->channel != channel) continue;
    Detach(*sequence, now);
    ++count;
  }
  return count;
}

size_t SequenceStore::Reclaim(Time now) {
  return std::erase_if(sequences_, [&](const auto& entry) {
    return !entry.second->attached() && now - entry.second->detached_at >= detach_ttl_;
  });
}

CachedSequence* SequenceStore::Find(uint64_t sequence_id) const {
  const auto found = sequences_.find(sequence_id);
  return found == sequences_.end() ? nullptr : found->second.get();
}

CachedSequence* SequenceStore::FindAttached(uint64_t sequence_id, uint32_t attach_epoch, uint32_t channel) const {
  CachedSequence* sequence = Find(sequence_id);
  const bool current = sequence != nullptr && sequence->channel == channel && sequence->attach_epoch == attach_epoch;
  return current ? sequence : nullptr;
}

}  // namespace winnow
