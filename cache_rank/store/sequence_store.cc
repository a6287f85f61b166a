#include "cache_rank/store/sequence_store.h"

#include <algorithm>
#include <span>
#include <utility>

namespace winnow {
namespace {

// More than calls can be under way; they are numbers that nobody takes again.
constexpr size_t kMaxReleasedEarly = 16384;
constexpr size_t kMaxUndoneCalls = 16384;

absl::Status NotFound(uint64_t sequence_id) {
  return absl::NotFoundError(absl::StrCat("sequence ", sequence_id, " is not on this cache rank"));
}
absl::Status AlreadyExists(uint64_t sequence_id) {
  return absl::AlreadyExistsError(absl::StrCat("sequence ", sequence_id, " exists already"));
}

// The index is shared with the rows, so that sequences with another one share nothing; nor do other shards.
std::string SaltOf(const std::string& salt, const IndexLayout& index, bool tiered, const KvShard& shard) {
  const int key_dtype = index.key_dtype.has_value() ? static_cast<int>(*index.key_dtype) : -1;
  // With two tiers, whether tiles are index says where they lie.
  const bool keys_apart = tiered && index.scores_keys;
  return absl::StrCat(index.page_tokens, ",", index.cuboid, ",", index.index_keys, ",", key_dtype, ",", keys_apart, ",",
                      shard.first_kv_head, "+", shard.num_kv_heads, ",", shard.first_layer, "+", shard.num_layers, ",",
                      salt);
}

}  // namespace

SequenceStore::SequenceStore(KvBlockPool* pool, const KernelTable* kernels, const KvLayout& layout,
                             std::chrono::milliseconds detach_ttl, size_t max_idle_prefix_blocks)
    : pool_(pool), kernels_(kernels), layout_(layout), detach_ttl_(detach_ttl), prefixes_(max_idle_prefix_blocks) {
  pool_->SetReclaimer([this](size_t blocks, size_t index_bytes) { prefixes_.MakeRoom(*pool_, blocks, index_bytes); });
}

SequenceStore::~SequenceStore() {
  pool_->SetReclaimer(nullptr);
}

absl::StatusOr<CachedSequence*> SequenceStore::Open(uint32_t channel, const OpenOptions& options) {
  if (released_early_.contains(options.sequence_id)) return NotFound(options.sequence_id);
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<CachedSequence> sequence, Make(options));
  sequence->channel = channel;
  ++active_;
  return (sequences_[options.sequence_id] = std::move(sequence)).get();
}

// It may have been released early: then its sequence was here once, and has moved.
absl::StatusOr<CachedSequence*> SequenceStore::OpenReplica(uint64_t feed, const OpenOptions& options) {
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<CachedSequence> sequence, Make(options));
  sequence->is_replica = true;
  sequence->feed = feed;
  return (sequences_[options.sequence_id] = std::move(sequence)).get();
}

void SequenceStore::EndFeed(uint64_t feed, Time now) {
  for (auto& [id, sequence] : sequences_) {
    if (sequence->feed == feed) DetachReplica(id, now);
  }
}

void SequenceStore::DetachReplica(uint64_t sequence_id, Time now) {
  CachedSequence* const sequence = Find(sequence_id);
  if (sequence == nullptr || sequence->feed == 0) return;
  sequence->feed = 0;
  sequence->detached_at = now;
}

absl::Status SequenceStore::CheckPositions(const OpenOptions& options) {
  if (options.max_positions > 0 && options.prompt_tokens <= options.max_positions) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("max_positions is ", options.max_positions, ", prompt_tokens ", options.prompt_tokens));
}

absl::StatusOr<std::unique_ptr<CachedSequence>> SequenceStore::Make(const OpenOptions& options) {
  if (Find(options.sequence_id) != nullptr) return AlreadyExists(options.sequence_id);
  WINNOW_RETURN_IF_ERROR(CheckPositions(options));
  const KvShard shard = options.shard.num_layers == 0 ? WholeModel(layout_) : options.shard;
  const KvLayout layout = LayoutOf(layout_, shard);
  const IndexLayout index = IndexLayoutFor(options.spec, layout.dtype);
  KvRetention retention = KvRetention::Of(options.spec, layout);
  // What streaming heads gave back cannot be shared.
  const bool shares = prefixes_.enabled() && retention.streams.empty() && !options.prompt_token_ids.empty() &&
                      options.prompt_token_ids.size() == options.prompt_tokens;
  const std::string salt =
      shares ? SaltOf(options.prefix_salt, index, pool_->tiers() != nullptr, shard) : std::string();
  PrefixCache::Lease prefix;
  if (shares) {
    const std::span<const uint32_t> tokens(options.prompt_token_ids);
    const uint32_t limit = std::min(PrefixLimit(options.spec, options.prompt_tokens), options.max_cached_tokens);
    prefix = prefixes_.Find(salt, tokens.first(limit));
  }
  WINNOW_ASSIGN_OR_RETURN(SequenceKv kv, SequenceKv::Create(pool_, kernels_, layout, options.max_positions, index,
                                                            std::move(retention), prefix.units()));
  WINNOW_ASSIGN_OR_RETURN(StateSnapshots states, StateSnapshots::Create(pool_, options.state_bytes));
  auto sequence = std::make_unique<CachedSequence>(options.sequence_id, options.spec, std::move(kv), layout, shard,
                                                   options.prompt_tokens);
  sequence->states = std::move(states);
  sequence->sampling = options.sampling;
  sequence->prefix = std::move(prefix);
  sequence->cached_tokens = sequence->prefix.positions();
  sequence->opened_with_salt = options.prefix_salt;
  if (shares) {
    sequence->prefix_salt = salt;
    const size_t whole = options.prompt_tokens / kBlockTokens * kBlockTokens;
    sequence->prefix_token_ids.assign(options.prompt_token_ids.begin(), options.prompt_token_ids.begin() + whole);
    sequence->prompt_token_ids = std::make_shared<const std::vector<uint32_t>>(options.prompt_token_ids);
  }
  return sequence;
}

void SequenceStore::KeepPrefix(CachedSequence& sequence) {
  if (sequence.prefix_token_ids.empty()) return;
  sequence.prefix = prefixes_.Insert(sequence.prefix_salt, std::exchange(sequence.prefix_token_ids, {}),
                                     [&](size_t block) { return sequence.kv.ShareUnit(block); });
}

absl::StatusOr<CachedSequence*> SequenceStore::Attach(uint32_t channel, uint64_t sequence_id, uint32_t max_restart,
                                                      uint64_t call, std::optional<std::string_view> prefix_salt,
                                                      uint64_t state_bytes) {
  CachedSequence* sequence = Find(sequence_id);
  if (sequence == nullptr) return NotFound(sequence_id);
  const bool is_overtaken = call != 0 && sequence->channel == channel && call < sequence->attach_call;
  if (is_overtaken || undone_calls_.contains({channel, call})) {
    return absl::AbortedError(absl::StrCat("the caller does not wait for sequence ", sequence_id, " any more"));
  }
  // Of a replica, which gets no states, nothing is kept.
  if (state_bytes > 0) max_restart = sequence->StateRestart(max_restart, state_bytes, prefix_salt.has_value());
  uint32_t restart = sequence->RestartPosition(max_restart);
  if (restart == 0 && prefix_salt.has_value()) {
    if (*prefix_salt != sequence->opened_with_salt) {
      return absl::NotFoundError(absl::StrCat("the prompt of sequence ", sequence_id,
                                              " is not complete, and ranks like the caller did not begin it"));
    }
    restart = sequence->PromptRestart(max_restart);
  }
  if (state_bytes != sequence->states.state_bytes()) {
    WINNOW_ASSIGN_OR_RETURN(sequence->states, StateSnapshots::Create(pool_, state_bytes));
  }
  WINNOW_RETURN_IF_ERROR(sequence->Restart(restart));
  if (!sequence->attached()) ++active_;
  sequence->channel = channel;
  sequence->is_replica = false;
  sequence->feed = 0;
  ++sequence->attach_epoch;
  sequence->attach_call = call;
  return sequence;
}

void SequenceStore::UndoAttach(uint32_t channel, uint64_t sequence_id, uint64_t call, Time now) {
  CachedSequence* const sequence = Find(sequence_id);
  if (sequence != nullptr && sequence->channel == channel && sequence->attach_call == call) {
    return Detach(*sequence, now);
  }
  if (undone_calls_.size() >= kMaxUndoneCalls) undone_calls_.clear();
  undone_calls_.emplace(channel, call);
}

absl::StatusOr<CachedSequence*> SequenceStore::Fork(uint32_t channel, uint64_t source_id, uint64_t sequence_id,
                                                    uint32_t max_positions) {
  const CachedSequence* source = Find(source_id);
  if (source == nullptr) return NotFound(source_id);
  if (Find(sequence_id) != nullptr) return AlreadyExists(sequence_id);
  if (released_early_.contains(sequence_id)) return NotFound(sequence_id);
  const uint32_t position = source->RestartPosition(source->kv.watermark());
  if (position < source->kv.watermark()) {
    return absl::FailedPreconditionError(
        absl::StrCat("sequence ", source_id, " is not complete up to its watermark yet"));
  }
  WINNOW_ASSIGN_OR_RETURN(SequenceKv kv, source->kv.Fork(max_positions));
  WINNOW_ASSIGN_OR_RETURN(StateSnapshots states, source->states.Fork());
  auto fork = std::make_unique<CachedSequence>(sequence_id, source->spec, std::move(kv), source->layout, source->shard,
                                               source->prompt_tokens);
  fork->states = std::move(states);
  fork->sampling = source->sampling;
  fork->journal = source->journal;
  fork->journal.Truncate(position);
  fork->channel = channel;
  fork->prefix = source->prefix.Share();
  fork->prompt_token_ids = source->prompt_token_ids;
  fork->opened_with_salt = source->opened_with_salt;
  fork->cached_tokens = source->cached_tokens;
  fork->first_copied = source->first_copied;
  fork->layers = source->layers;
  WINNOW_RETURN_IF_ERROR(fork->Restart(position));
  ++active_;
  return (sequences_[sequence_id] = std::move(fork)).get();
}

absl::StatusOr<CachedSequence*> SequenceStore::FindAtEpoch(uint64_t sequence_id, uint32_t attach_epoch) const {
  CachedSequence* sequence = Find(sequence_id);
  if (sequence == nullptr || sequence->attach_epoch == attach_epoch) return sequence;
  return absl::AbortedError(
      absl::StrCat("sequence ", sequence_id, " is at attach_epoch ", sequence->attach_epoch, ", not ", attach_epoch));
}

absl::Status SequenceStore::Release(uint64_t sequence_id, uint32_t attach_epoch) {
  const CachedSequence* sequence = Find(sequence_id);
  if (attach_epoch != kAnyEpoch) {
    WINNOW_ASSIGN_OR_RETURN(sequence, FindAtEpoch(sequence_id, attach_epoch));
  }
  if (sequence == nullptr) {
    if (released_early_.size() >= kMaxReleasedEarly) released_early_.clear();
    released_early_.insert(sequence_id);
    return absl::OkStatus();
  }
  if (sequence->attached()) --active_;
  sequences_.erase(sequence_id);
  return absl::OkStatus();
}

absl::Status SequenceStore::Detach(uint64_t sequence_id, uint32_t attach_epoch, Time now) {
  WINNOW_ASSIGN_OR_RETURN(CachedSequence * sequence, FindAtEpoch(sequence_id, attach_epoch));
  if (sequence != nullptr) Detach(*sequence, now);
  return absl::OkStatus();
}

void SequenceStore::Detach(CachedSequence& sequence, Time now) {
  if (!sequence.attached()) return;
  sequence.channel = 0;
  sequence.detached_at = now;
  sequence.planned = {};
  --active_;
}

size_t SequenceStore::DetachChannel(uint32_t channel, Time now) {
  undone_calls_.erase(undone_calls_.lower_bound({channel, 0}), undone_calls_.upper_bound({channel, UINT64_MAX}));
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
    const CachedSequence& sequence = *entry.second;
    return !sequence.attached() && sequence.feed == 0 && now - sequence.detached_at >= detach_ttl_;
  });
}

void SequenceStore::CondemnBlock(uint32_t block_number, uint32_t row) {
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->kv.is_damaged()) continue;
    std::optional<DamagedRow> held = sequence->kv.FindBlock(block_number);
    if (!held.has_value()) continue;
    held->position += row;
    sequence->kv.NoteDamage(*held);
  }
  prefixes_.Forget(block_number);
}

std::vector<uint64_t> SequenceStore::sequence_ids() const {
  std::vector<uint64_t> ids;
  ids.reserve(sequences_.size());
  for (const auto& [id, sequence] : sequences_) ids.push_back(id);
  return ids;
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

size_t SequenceStore::CountSharded() const {
  const KvShard whole = WholeModel(layout_);
  return std::count_if(sequences_.begin(), sequences_.end(),
                       [&](const auto& entry) { return entry.second->shard != whole; });
}

size_t SequenceStore::replicas() const {
  return std::count_if(sequences_.begin(), sequences_.end(), [](const auto& entry) { return entry.second->feed != 0; });
}

size_t SequenceStore::CountAttached(uint32_t channel) const {
  return std::count_if(sequences_.begin(), sequences_.end(),
                       [&](const auto& entry) { return entry.second->channel == channel; });
}

}  // namespace winnow
