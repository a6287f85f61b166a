#include "cache_rank/step/prefix_attender.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

namespace winnow {
namespace {

// To widen a tile of keys costs as much as so many rows of queries that use it.
constexpr uint32_t kTileCostRows = 32;
// Frames that a link may have waiting, of all its sequences.
constexpr size_t kMaxFrames = 1024;

}  // namespace

PrefixAttender::PrefixAttender(const Options& options, const SelectionModel& model, const KernelTable* kernels,
                               Executor* executor, const SequenceStore* store, Streamer* streamer,
                               CacheRankMetrics* metrics)
    : piece_products_(options.piece_products),
      model_(model),
      kernels_(kernels),
      executor_(executor),
      store_(store),
      streamer_(streamer),
      metrics_(metrics),
      num_workers_(kernels->num_workers(*executor)),
      scratch_(num_workers_) {}

absl::StatusOr<bool> PrefixAttender::Take(InferenceLink& link, const CachedSequence& sequence, int layer,
                                          const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  const int num_heads = sequence.layout.num_query_heads;
  const size_t query_floats = static_cast<size_t>(num_heads) * model_.head_dim;
  const uint32_t end_key = header.flags;
  const bool fits = header.row_count >= 1 && header.row_count <= wire::MaxPrefixQueries(num_heads, model_.head_dim) &&
                    model_.group_size <= kMaxPrefixRows &&
                    frame.payload().size() == header.row_count * query_floats * sizeof(float) && end_key > 0 &&
                    end_key % kPrefillKeyTile == 0 && end_key <= header.apply_position;
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(header.row_count, " queries of a prefix in ", frame.payload().size(),
                                                   " bytes, for ", end_key, " keys"));
  }
  if (link.to_attend.size() >= kMaxFrames) return absl::InvalidArgumentError("too many unanswered queries of prefixes");
  if (!sequence.kv.SettleRowsBelow(layer, end_key)) return false;
  auto work = std::make_unique<PrefixQueries>();
  work->sequence_id = sequence.id;
  work->attach_epoch = sequence.attach_epoch;
  work->first = header.apply_position;
  work->count = header.row_count;
  work->layer = layer;
  work->end_key = end_key;
  work->q.resize(header.row_count * query_floats);
  std::memcpy(work->q.data(), frame.payload().data(), frame.payload().size());
  work->states.resize(static_cast<size_t>(header.row_count) * num_heads * PrefillStateFloats(model_.head_dim));
  metrics_->prefix_queries.Add(header.row_count);
  link.to_attend.push_back(std::move(work));
  return true;
}

const CachedSequence* PrefixAttender::Front(InferenceLink& link) {
  while (!link.to_attend.empty()) {
    const PrefixQueries& work = *link.to_attend.front();
    const CachedSequence* sequence = store_->FindAttached(work.sequence_id, work.attach_epoch, link.id);
    if (sequence != nullptr && sequence->kv.SettleRowsBelow(work.layer, work.end_key)) return sequence;
    link.to_attend.pop_front();
  }
  return nullptr;
}

bool PrefixAttender::RunOnce(InferenceLinks& links) {
  // The link after the last served comes first.
  for (int pass = 0; pass < 2; ++pass) {
    for (auto& [id, link] : links) {
      if ((id > last_link_) != (pass == 0) || !link->failure.ok()) continue;
      const CachedSequence* sequence = Front(*link);
      if (sequence == nullptr) continue;
      last_link_ = id;
      PrefixQueries& work = *link->to_attend.front();
      RunPiece(*sequence, work);
      if (work.next_key == work.end_key) {
        streamer_->SendPrefixStates(*link, *sequence, work);
        link->to_attend.pop_front();
        streamer_->Pump(*link);
      }
      return true;
    }
  }
  return false;
}

void PrefixAttender::RunPiece(const CachedSequence& sequence, PrefixQueries& work) {
  const TimelineSpan span(metrics_->timeline, Span::kAttendPrefix,
                          static_cast<uint16_t>(sequence.layer_of_model(work.layer)), 0, 1);
  const auto start = std::chrono::steady_clock::now();
  const auto group = static_cast<uint32_t>(model_.group_size);
  const auto heads = static_cast<uint32_t>(sequence.layout.num_kv_heads);
  // As few blocks of queries as keep all workers busy: each of them widens all keys.
  const uint32_t most = std::max(1u, kMaxPrefixRows / group);
  const uint32_t wanted = (static_cast<uint32_t>(num_workers_) + heads - 1) / heads;
  const uint32_t worth = std::max(1u, work.count * group / kTileCostRows);
  const uint32_t blocks = std::max((work.count + most - 1) / most, std::min(wanted, worth));
  block_queries_ = (work.count + blocks - 1) / blocks;
  blocks_ = static_cast<int>((work.count + block_queries_ - 1) / block_queries_);
  const uint64_t products_of_key = uint64_t{2} * static_cast<uint32_t>(model_.head_dim) * heads *
                                   (uint64_t{work.count} * group + static_cast<uint32_t>(blocks_) * kTileCostRows);
  const uint64_t tiles = piece_products_ * static_cast<uint32_t>(num_workers_) / products_of_key / kPrefillKeyTile;
  const uint64_t keys = std::max<uint64_t>(tiles, 1) * kPrefillKeyTile;
  sequence_ = &sequence;
  work_ = &work;
  end_key_ = static_cast<uint32_t>(std::min<uint64_t>(work.end_key, work.next_key + keys));
  kernels_->parallel_for(
      *executor_, static_cast<int>(heads) * blocks_,
      [](void* self, int item, int worker) { static_cast<PrefixAttender*>(self)->RunItem(item, worker); }, this);
  work.next_key = end_key_;
  metrics_->prefix_pieces.Add(1);
  metrics_->prefix_attention_seconds.Add(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

void PrefixAttender::RunItem(int item, int worker) {
  const int kv_head = item / blocks_;
  const uint32_t begin = static_cast<uint32_t>(item % blocks_) * block_queries_;
  if (begin == 0) sequence_->kv.CheckRows(work_->layer, kv_head, work_->next_key, end_key_);
  const int num_heads = sequence_->layout.num_query_heads, group = model_.group_size;
  const size_t first_head = static_cast<size_t>(begin) * num_heads + static_cast<size_t>(kv_head) * group;
  const int state_floats = PrefillStateFloats(model_.head_dim);
  kernels_->prefix_attention({.q = work_->q.data() + first_head * model_.head_dim,
                              .q_stride = static_cast<int64_t>(num_heads) * model_.head_dim,
                              .num_queries = static_cast<int>(std::min(block_queries_, work_->count - begin)),
                              .group_size = group,
                              .head_dim = model_.head_dim,
                              .scale = model_.attention_scale,
                              .score_cap = model_.attention_softcap,
                              .blocks = sequence_->kv.row_blocks(work_->layer, kv_head),
                              .kv_dtype = model_.dtype,
                              .row = model_.row,
                              .first_key = work_->next_key,
                              .end_key = end_key_,
                              .state = work_->states.data() + first_head * state_floats,
                              .state_stride = static_cast<int64_t>(num_heads) * state_floats,
                              .scratch = scratch_[worker].Reserve(PrefixAttentionScratchBytes(model_.head_dim))});
}

}  // namespace winnow
