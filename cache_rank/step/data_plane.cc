#include "cache_rank/step/data_plane.h"

#include <algorithm>
#include <utility>

#include "cache_rank/step/store_gauges.h"
#include "cache_rank/stream/frame_entries.h"
#include "common/selection/validate.h"

namespace winnow {
namespace {

constexpr int kMostSelectionsInARow = 8;  // batches, while a prompt waits for attention to its prefix

// Threads that take pages ahead of rows: a quarter of those that store them, as zeroing is faster than storing. Memory
// that is used up at once needs none.
int PageThreads(size_t memory_bytes, int workers) {
  constexpr size_t kLittleMemoryBytes = size_t{256} << 20;
  return memory_bytes < kLittleMemoryBytes ? 0 : std::clamp(workers / 4, 1, 4);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataPlane>> DataPlane::Create(const Options& options, const ServedShape& shape,
                                                             const KernelTable* kernels, Executor* executor,
                                                             CacheRankMetrics* metrics,
                                                             const QueryProjection* projection) {
  const KvLayout& layout = shape.layout;
  if (projection != nullptr) {
    WINNOW_RETURN_IF_ERROR(projection->CheckShape(layout.num_layers, layout.num_query_heads, layout.head_dim));
  }
  std::unique_ptr<RowTiers> tiers;
  if (options.tiers.fast.memory_bytes > 0) {
    WINNOW_ASSIGN_OR_RETURN(tiers, RowTiers::Create(options.tiers, shape.layout, kernels, executor));
  }
  WINNOW_ASSIGN_OR_RETURN(auto pool,
                          KvBlockPool::Create(options.memory_bytes, shape.layout, std::move(tiers),
                                              PageThreads(options.memory_bytes, kernels->num_workers(*executor))));
  std::unique_ptr<BatchSelector> batch_selector;
  if (options.new_batch_selector != nullptr) {
    WINNOW_ASSIGN_OR_RETURN(batch_selector, options.new_batch_selector(shape));
  }
  return std::unique_ptr<DataPlane>(new DataPlane(options, shape, std::move(pool), kernels, executor, metrics,
                                                  projection, std::move(batch_selector)));
}

DataPlane::DataPlane(const Options& options, const ServedShape& shape, std::unique_ptr<KvBlockPool> pool,
                     const KernelTable* kernels, Executor* executor, CacheRankMetrics* metrics,
                     const QueryProjection* projection, std::unique_ptr<BatchSelector> batch_selector)
    : shape_(shape),
      projection_(projection),
      metrics_(metrics),
      pool_(std::move(pool)),
      batch_selector_(std::move(batch_selector)),
      peer_links_(options.peer_links),
      on_peer_link_ended_(options.on_peer_link_ended),
      store_(pool_.get(), kernels, shape_.layout, options.detach_ttl, options.idle_prefix_bytes / pool_->block_bytes()),
      streamer_(options.streamer, shape_.layout, executor, kernels->num_workers(*executor), &store_, metrics),
      selector_(options.selector, shape_.model, projection, kernels, executor, &store_, &streamer_, metrics,
                batch_selector_.get()),
      prefetcher_(shape_.model, kernels, executor, &store_, &streamer_, metrics),
      attender_(options.attender, shape_.model, kernels, executor, &store_, &streamer_, metrics),
      scrubber_(options.scrub_bytes_per_s, pool_.get(), &store_),
      damage_(pool_.get(), &store_, &streamer_, metrics, options.on_damage),
      frames_(shape_.layout, projection == nullptr ? 0 : projection->hidden_size(), shape_.model.rope, kernels, &store_,
              &streamer_, &selector_, &prefetcher_, &attender_, executor, metrics, peer_links_.get()) {
  if (peer_links_ != nullptr) peer_links_->UseExecutor(executor);
  metrics_->num_layers.Set(shape_.layout.num_layers);
  metrics_->blocks_total.Set(pool_->total());
  metrics_->block_bytes.Set(pool_->block_bytes());
}

DataPlane::~DataPlane() {
  stopping_ = true;
  while (!links_.empty()) CloseLink(links_.begin()->first, absl::UnavailableError("the cache rank is stopping"));
}

uint32_t DataPlane::OpenLink(std::string rank, std::unique_ptr<Channel> channel,
                             std::function<void(const absl::Status&)> on_closed) {
  auto link = std::make_unique<InferenceLink>();
  link->id = next_link_id_++;
  link->rank = std::move(rank);
  link->channel = std::move(channel);
  link->on_closed = std::move(on_closed);
  const uint32_t id = link->id;
  links_[id] = std::move(link);
  metrics_->channels.Set(links_.size());
  return id;
}

absl::StatusOr<std::string> DataPlane::OpenPeerLink(uint32_t link_id, const PeerOffer& offer) {
  WINNOW_ASSIGN_OR_RETURN(InferenceLink * link, FindLink(link_id));
  if (peer_links_ == nullptr) return absl::FailedPreconditionError("the cache rank selects on no GPU (--cache-device)");
  WINNOW_ASSIGN_OR_RETURN(link->peer_link, peer_links_->Open(offer, shape_));
  metrics_->peer_links.Add(1);
  return link->peer_link->address();
}

void DataPlane::CloseLink(uint32_t link_id, const absl::Status& reason) {
  const auto found = links_.find(link_id);
  if (found == links_.end()) return;
  const std::unique_ptr<InferenceLink> link = std::move(found->second);
  links_.erase(found);
  if (link->peer_link != nullptr) {
    const absl::Status failed = link->peer_link->status().ok() ? link->failure : link->peer_link->status();
    if (on_peer_link_ended_ && !(stopping_ && failed.ok()))
      on_peer_link_ended_(link->rank, failed.ok() ? reason : failed);
    link->peer_link->Abort(reason);
    frames_.peer_links().TakeStaged(*link, /*wait=*/true);
    frames_.peer_links().TakeRows(*link, /*wait=*/true);
    link->peer_link.reset();
    metrics_->peer_links.Add(-1);
  }
  metrics_->queued_frames.Add(-link->queued());  // what the end of the peer link has queued, too
  store_.DetachChannel(link_id, std::chrono::steady_clock::now());
  link->channel->Close();
  if (link->on_closed) link->on_closed(reason);
  metrics_->channels.Set(links_.size());
  PublishGauges(store_, *pool_, metrics_);
}

absl::StatusOr<InferenceLink*> DataPlane::FindLink(uint32_t link_id) {
  const auto found = links_.find(link_id);
  if (found != links_.end()) return found->second.get();
  return absl::NotFoundError(absl::StrCat("channel ", link_id, " is not open"));
}

void DataPlane::TakeRowsUnderWay(uint32_t link_id) {
  const auto link = links_.find(link_id);
  if (link == links_.end()) return;
  frames_.peer_links().TakeStaged(*link->second, /*wait=*/true);
  frames_.peer_links().TakeRows(*link->second, /*wait=*/true);
}

void DataPlane::ForgetOnDevices(uint64_t sequence_id) {
  if (batch_selector_ != nullptr) batch_selector_->Forget(sequence_id);
  if (peer_links_ != nullptr) peer_links_->Forget(sequence_id);
}

absl::Status DataPlane::CheckServable(const SequenceStore::OpenOptions& options) const {
  const KvShard shard = options.shard.num_layers == 0 ? WholeModel(shape_.layout) : options.shard;
  WINNOW_RETURN_IF_ERROR(SequenceStore::CheckPositions(options));
  WINNOW_RETURN_IF_ERROR(CheckShard(shape_.layout, shard));
  WINNOW_RETURN_IF_ERROR(ValidateSelection(options.spec));
  WINNOW_RETURN_IF_ERROR(CheckFitsModel(options.spec, LayoutOf(shape_.layout, shard)));
  const bool projects =
      options.spec.predictor == Predictor::kDepth && options.spec.projection == Projection::kCacheRank;
  if (projects && projection_ == nullptr) {
    return absl::FailedPreconditionError(
        "selection.projection is on the cache rank, which holds no weights: start it with --model DIR");
  }
  const bool selects = AnyList(0, shard.num_lists(), [&](size_t list) {
    return IsSparse(options.spec, list, options.max_positions, options.prompt_tokens);
  });
  if (selects && options.max_positions > HeadResidency::kMaxPositions) {
    return absl::InvalidArgumentError(absl::StrCat("max_positions ", options.max_positions, " exceeds ",
                                                   HeadResidency::kMaxPositions,
                                                   ", the most that can be selected from"));
  }
  if (selects) WINNOW_RETURN_IF_ERROR(CheckEntriesFit(shape_.layout, options.spec, options.max_positions));
  return absl::OkStatus();
}

absl::StatusOr<CachedSequence*> DataPlane::OpenReplica(uint64_t feed, const SequenceStore::OpenOptions& options) {
  WINNOW_RETURN_IF_ERROR(CheckServable(options));
  // What the one before has may have been replaced at the primary since its feed ended.
  if (const CachedSequence* const before = store_.Find(options.sequence_id); before != nullptr && before->is_replica) {
    WINNOW_RETURN_IF_ERROR(ReleaseSequence(options.sequence_id, SequenceStore::kAnyEpoch));
  }
  absl::StatusOr<CachedSequence*> sequence = store_.OpenReplica(feed, options);
  if (sequence.ok()) ForgetOnDevices(options.sequence_id);
  PublishGauges(store_, *pool_, metrics_);
  return sequence;
}

absl::StatusOr<DataPlane::Opened> DataPlane::OpenSequence(uint32_t link_id, const SequenceStore::OpenOptions& options) {
  WINNOW_ASSIGN_OR_RETURN(InferenceLink * link, FindLink(link_id));
  WINNOW_RETURN_IF_ERROR(CheckServable(options));
  frames_.peer_links().TakeStagedOf(*link, options.sequence_id);  // of one that had its number
  absl::StatusOr<CachedSequence*> sequence = store_.Open(link_id, options);
  if (!sequence.ok()) {
    metrics_->admissions_refused.Add(1);
    return sequence.status();
  }
  ForgetOnDevices(options.sequence_id);
  metrics_->sequences_opened.Add(1);
  const uint32_t cached = (*sequence)->kv.watermark();
  if (cached > 0) {
    if (link->peer_link != nullptr) link->to_copy.push_back(options.sequence_id);
    if (!options.pulls_prefix) {
      streamer_.SendPrefix(*link, **sequence,
                           {.num_layers = static_cast<uint32_t>((*sequence)->layout.num_layers), .end = cached});
    }
    streamer_.Pump(*link);
    metrics_->prefix_hits.Add(1);
    metrics_->prefix_cached_tokens.Add(cached);
  }
  if (!options.prompt_token_ids.empty()) metrics_->prefix_lookup_tokens.Add(options.prompt_tokens);
  PublishGauges(store_, *pool_, metrics_);
  return Opened{(*sequence)->attach_epoch, cached};
}

absl::Status DataPlane::PushPrefix(uint32_t link_id, uint64_t sequence_id, uint32_t attach_epoch,
                                   const PrefixRows& rows) {
  WINNOW_ASSIGN_OR_RETURN(InferenceLink * link, FindLink(link_id));
  const CachedSequence* sequence = store_.FindAttached(sequence_id, attach_epoch, link_id);
  if (sequence == nullptr) {
    return absl::AbortedError(absl::StrCat("sequence ", sequence_id, " is not attached to the caller"));
  }
  const uint32_t first = rows.layer - static_cast<uint32_t>(sequence->shard.first_layer);  // wraps around below it
  const auto here = static_cast<uint32_t>(sequence->layout.num_layers);
  bool complete = first < here && rows.num_layers <= here - first && rows.first <= rows.end && rows.sinks <= rows.end;
  for (uint32_t i = first; complete && i < first + rows.num_layers; ++i) {
    complete = rows.end <= sequence->kv.rows(static_cast<int>(i));
  }
  if (!complete) {
    return absl::OutOfRangeError(absl::StrCat("rows ", rows.first, " to ", rows.end, " of ", rows.num_layers,
                                              " layers from ", rows.layer, " on are not all there"));
  }
  PrefixRows of_shard = rows;
  of_shard.layer = first;
  streamer_.SendPrefix(*link, *sequence, of_shard);
  streamer_.Pump(*link);
  return absl::OkStatus();
}

absl::StatusOr<DataPlane::Attached> DataPlane::AttachSequence(uint32_t link_id, uint64_t sequence_id,
                                                              uint32_t max_restart_position,
                                                              const AttachOptions& options) {
  WINNOW_ASSIGN_OR_RETURN(InferenceLink * link, FindLink(link_id));
  const CachedSequence* before = store_.Find(sequence_id);
  const KvShard shard = options.shard.num_layers == 0 ? WholeModel(shape_.layout) : options.shard;
  if (before != nullptr && before->shard != shard) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this cache rank has another shard of sequence ", sequence_id, ": kv heads ", before->shard.first_kv_head,
        " + ", before->shard.num_kv_heads, ", layers ", before->shard.first_layer, " + ", before->shard.num_layers));
  }
  const uint32_t old_link = before == nullptr ? 0 : before->channel;
  const bool is_promoted = before != nullptr && before->is_replica;
  TakeRowsUnderWay(old_link);
  WINNOW_ASSIGN_OR_RETURN(const CachedSequence* sequence,
                          store_.Attach(link_id, sequence_id, max_restart_position, options.call, options.prefix_salt,
                                        options.state_bytes));
  if (const auto old = links_.find(old_link); old != links_.end() && old_link != link_id) {
    streamer_.SendFenced(*old->second, sequence_id, sequence->attach_epoch);
    streamer_.Pump(*old->second);
  }
  const uint32_t restart = sequence->kv.watermark();
  const bool goes_on_with_prompt = restart > 0 && restart < sequence->prompt_tokens;
  if (peer_links_ != nullptr) peer_links_->Truncate(sequence_id, restart);
  if (restart > 0 && options.state_bytes > 0) streamer_.SendState(*link, *sequence, restart);
  if (goes_on_with_prompt) {
    if (link->peer_link != nullptr) link->to_copy.push_back(sequence_id);
  } else {
    streamer_.SendRefill(*link, *sequence, restart, options.wants_all_rows);
  }
  streamer_.Pump(*link);
  metrics_->sequences_attached.Add(1);
  metrics_->replicas_promoted.Add(is_promoted && restart > 0);
  PublishGauges(store_, *pool_, metrics_);
  return Attached{sequence->attach_epoch, restart, goes_on_with_prompt ? std::min(sequence->cached_tokens, restart) : 0,
                  sequence->journal};
}

absl::Status DataPlane::UndoAttach(uint32_t link_id, uint64_t sequence_id, uint64_t call) {
  if (!links_.contains(link_id)) return absl::OkStatus();
  store_.UndoAttach(link_id, sequence_id, call, std::chrono::steady_clock::now());
  PublishGauges(store_, *pool_, metrics_);
  return absl::OkStatus();
}

absl::StatusOr<DataPlane::Forked> DataPlane::ForkSequence(uint32_t link_id, uint64_t source_id, uint64_t sequence_id,
                                                          uint32_t max_positions) {
  WINNOW_RETURN_IF_ERROR(FindLink(link_id).status());
  if (const CachedSequence* source = store_.Find(source_id); source != nullptr) TakeRowsUnderWay(source->channel);
  WINNOW_ASSIGN_OR_RETURN(const CachedSequence* fork, store_.Fork(link_id, source_id, sequence_id, max_positions));
  ForgetOnDevices(sequence_id);
  metrics_->sequences_forked.Add(1);
  PublishGauges(store_, *pool_, metrics_);
  return Forked{fork->attach_epoch, fork->kv.watermark()};
}

absl::Status DataPlane::ReleaseSequence(uint64_t sequence_id, uint32_t attach_epoch) {
  absl::Status released = store_.Release(sequence_id, attach_epoch);
  if (store_.Find(sequence_id) == nullptr) ForgetOnDevices(sequence_id);
  PublishGauges(store_, *pool_, metrics_);
  return released;
}

absl::Status DataPlane::DetachSequence(uint64_t sequence_id, uint32_t attach_epoch) {
  absl::Status detached = store_.Detach(sequence_id, attach_epoch, std::chrono::steady_clock::now());
  PublishGauges(store_, *pool_, metrics_);
  return detached;
}

void DataPlane::HandleFrame(Channel& channel, const ReceivedFrame& frame) {
  for (auto& [id, link] : links_) {
    if (link->channel.get() == &channel) return frames_.Handle(*link, frame);
  }
}

bool DataPlane::RunOnce() {
  // First what waits for window: a queue that has drained lets the selector work for its link again.
  for (auto& [id, link] : links_) streamer_.Pump(*link);
  const bool waits_for_gpu = RunPeerLinks();
  const bool scrubbed = scrubber_.RunOnce();
  GiveUpDamaged();
  const bool worked = Select() || prefetcher_.RunOnce(links_);
  GiveUpDamaged();
  if (worked || scrubbed || waits_for_gpu) return true;
  for (const auto& [id, link] : links_) {
    if (!link->bulk.empty() && !link->bulk_waits && link->failure.ok()) return true;  // the next Pump goes on with it
  }
  return pool_->tiers() != nullptr && pool_->tiers()->Flush();
}

void DataPlane::GiveUpDamaged() {
  const std::vector<uint64_t> given_up = damage_.Respond(links_);
  if (given_up.empty()) return;
  for (const uint64_t id : given_up) ForgetOnDevices(id);
  for (auto& [id, link] : links_) streamer_.Pump(*link);  // who decodes them waits
  PublishGauges(store_, *pool_, metrics_);
}

// Steps go first, but not for ever: a prompt waits for its prefix, too.
bool DataPlane::Select() {
  if (selections_in_a_row_ < kMostSelectionsInARow && selector_.RunOnce(links_)) {
    ++selections_in_a_row_;
    return true;
  }
  selections_in_a_row_ = 0;
  return attender_.RunOnce(links_) || selector_.RunOnce(links_);
}

// True while there is work for peer links, or plans are under way whose ends come without a frame.
bool DataPlane::RunPeerLinks() {
  bool waits = false;
  for (auto& [id, link] : links_) {
    waits |= link->failure.ok() && frames_.peer_links().RunBatchRowRequests(*link);
    if (link->peer_link == nullptr) continue;
    frames_.peer_links().TakeStaged(*link, /*wait=*/false);
    // The prompt waits for what goes back to it, and only the answer for the GPU's copy.
    const bool goes_back = !link->bulk.empty();
    waits |= (!goes_back && frames_.peer_links().CopyPrefix(*link)) || !link->staged.empty();
    frames_.peer_links().TakeRows(*link, /*wait=*/false);
    if (absl::Status status = link->peer_link->status(); !status.ok()) link->Fail(std::move(status));
    waits |= link->failure.ok() && link->peer_link->has_plans();
  }
  return waits;
}

bool DataPlane::HasBacklog() const {
  for (const auto& [id, link] : links_) {
    if (link->queued() > 0) return true;
  }
  return false;
}

void DataPlane::Tick(std::chrono::steady_clock::time_point now) {
  for (auto next = links_.begin(); next != links_.end();) {
    InferenceLink& link = *(next++)->second;
    link.Fail(link.channel->failed());
    if (!link.failure.ok()) CloseLink(link.id, absl::Status(link.failure));
  }
  scrubber_.Tick(now);
  const Scrubber::Counts& scrubbed = scrubber_.counts();
  metrics_->scrubbed_bytes.Set(scrubbed.bytes);
  metrics_->scrub_passes.Set(scrubbed.passes);
  metrics_->scrub_damaged_rows.Set(scrubbed.damaged_rows);
  metrics_->mended_index_blocks.Set(scrubbed.mended_blocks);
  const size_t expired = store_.Reclaim(now);
  const auto stays = [&](uint64_t id) { return store_.Find(id) != nullptr; };
  if (expired > 0 && batch_selector_ != nullptr) batch_selector_->Retain(stays);
  if (expired > 0 && peer_links_ != nullptr) peer_links_->Retain(stays);
  if (peer_links_ != nullptr) PublishCopies(peer_links_->copy_bytes(), metrics_);
  metrics_->sequences_expired.Add(expired);
  PublishGauges(store_, *pool_, metrics_);
}

}  // namespace winnow
