#include "cache_rank/streamer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>

#include "common/base/check.h"

namespace winnow {
namespace {

constexpr int kBulkFrames = 4;  // posted between two polls

// End of an entry's header and index arrays that begin at `offset`, where its rows go.
size_t RowsOffset(size_t offset, size_t selected, size_t members, size_t streamed, size_t local) {
  offset = wire::AlignUp(offset, alignof(wire::DeltaEntry)) + sizeof(wire::DeltaEntry);
  offset += (selected + streamed) * sizeof(uint32_t) + local * sizeof(wire::LocalRow);
  offset += wire::AlignUp(members * sizeof(QueryHeadMask), alignof(uint32_t));
  return streamed > 0 ? wire::AlignUp(offset, wire::kRowAlignment) : offset;
}

// Zeroes what alignment skips: payloads carry nothing but what was written.
void Pad(size_t alignment, std::byte* payload, size_t* offset) {
  const size_t aligned = wire::AlignUp(*offset, alignment);
  std::memset(payload + *offset, 0, aligned - *offset);
  *offset = aligned;
}

template <typename T>
void WriteArray(const T* values, size_t count, std::byte* payload, size_t* offset) {
  if (count > 0) std::memcpy(payload + *offset, values, count * sizeof(T));
  *offset += count * sizeof(T);
}

size_t EntryBytes(const HeadPartial& partial) {
  return sizeof(wire::PartialEntry) + (partial.o.size() + partial.lse.size()) * sizeof(float);
}

uint16_t ActionFlag(CorrectionAction action) {
  switch (action) {
    case CorrectionAction::kNone:
      return 0;
    case CorrectionAction::kMissedTopK:
      return wire::kPartialMissedTopK;
    case CorrectionAction::kWidened:
      return wire::kPartialWidened;
  }
  return 0;
}

}  // namespace

absl::Status Streamer::CheckFits(const SelectionSpec& spec, uint32_t max_positions) const {
  const int group = layout_.group_size();
  uint32_t most = UnionCeiling(spec, 0, group);
  for (size_t list = 1; list < spec.head_budgets.size(); ++list) most = std::max(most, UnionCeiling(spec, list, group));
  const size_t selected = std::min(most, max_positions);
  const size_t members = ListsPerKvHead(spec, group) > 1 ? selected : 0;
  const size_t local = std::min(wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens), max_positions);
  const size_t partial = sizeof(wire::PartialEntry) + wire::PartialStateBytes(layout_.group_size(), layout_.head_dim);
  if (WaitsForVerdict(spec) && partial > wire::kMaxPayloadBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the attention state of ", layout_.group_size(), " heads of ",
                                                   layout_.head_dim, " elements does not fit frames of ",
                                                   wire::kMaxPayloadBytes, " bytes"));
  }
  // One streamed row at least has to fit beside the arrays.
  if (RowsOffset(0, selected, members, 1, local) + layout_.row_bytes() <= wire::kMaxPayloadBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("selections of ", most, " rows and recent_tokens ", spec.recent_tokens,
                                                 " do not fit frames of ", wire::kMaxPayloadBytes, " bytes"));
}

std::unique_ptr<HeadDelta> Streamer::NewDelta() {
  if (free_deltas_.empty()) return std::make_unique<HeadDelta>();
  std::unique_ptr<HeadDelta> delta = std::move(free_deltas_.back());
  free_deltas_.pop_back();
  return delta;
}

void Streamer::Queue(PeerLink& link, OutgoingItem item) {
  // A queue this long means that the peer does not consume at all; the items themselves are bounded by what it asked
  // for.
  const bool is_bulk = item.type == wire::FrameType::kRefill || item.type == wire::FrameType::kRefillDone;
  RingQueue<OutgoingItem>& queue = is_bulk ? link.bulk : link.outgoing;
  if (queue.size() >= 16 * options_.max_queued) {
    link.Fail(absl::ResourceExhaustedError(absl::StrCat("rank ", link.rank, " does not take frames")));
    return;
  }
  queue.push_back(std::move(item));
  metrics_->queued_frames.Add(1);
}

void Streamer::PopFront(RingQueue<OutgoingItem>& queue) {
  if (queue.front().delta != nullptr) free_deltas_.push_back(std::move(queue.front().delta));
  if (queue.front().partial != nullptr) free_partials_.push_back(std::move(queue.front().partial));
  queue.pop_front();
  metrics_->queued_frames.Add(-1);
}

void Streamer::SendDelta(PeerLink& link, const CachedSequence& sequence, int layer, int kv_head,
                         std::unique_ptr<HeadDelta> delta) {
  metrics_->selection_lookups.Add(delta->selected.size());
  metrics_->selection_hits.Add(delta->selected.size() - delta->streamed.size() - delta->local.size());
  metrics_->local_rows.Add(delta->local.size());
  metrics_->prefetch_hits.Add(delta->prefetch_hits);
  const uint32_t count = static_cast<uint32_t>(delta->streamed.size());
  Queue(link, {.type = wire::FrameType::kDelta,
               .plan = sequence.seat.plan,
               .sequence_id = sequence.id,
               .attach_epoch = sequence.attach_epoch,
               .position = sequence.seat.position,
               .layer = static_cast<uint16_t>(sequence.layer_of_model(layer)),
               .kv_head = static_cast<uint16_t>(sequence.head_of_model(kv_head)),
               .plan_row = sequence.seat.row,
               .delta = std::move(delta),
               .count = count});
}

std::unique_ptr<HeadPartial> Streamer::NewPartial() {
  if (free_partials_.empty()) return std::make_unique<HeadPartial>();
  std::unique_ptr<HeadPartial> partial = std::move(free_partials_.back());
  free_partials_.pop_back();
  return partial;
}

void Streamer::SendPartial(PeerLink& link, const CachedSequence& sequence, int layer, int kv_head,
                           std::unique_ptr<HeadPartial> partial) {
  Queue(link, {.type = wire::FrameType::kPartial,
               .plan = sequence.seat.plan,
               .sequence_id = sequence.id,
               .attach_epoch = sequence.attach_epoch,
               .position = sequence.seat.position,
               .layer = static_cast<uint16_t>(sequence.layer_of_model(layer)),
               .kv_head = static_cast<uint16_t>(sequence.head_of_model(kv_head)),
               .plan_row = sequence.seat.row,
               .partial = std::move(partial)});
}

void Streamer::SendWatermark(PeerLink& link, uint64_t plan, const CachedSequence& sequence) {
  Queue(link, {.type = wire::FrameType::kWatermark,
               .plan = plan,
               .sequence_id = sequence.id,
               .attach_epoch = sequence.attach_epoch,
               .position = sequence.kv.watermark(),
               .working_set_rows = sequence.WorkingSetRows(),
               .loaded_rows = sequence.kv.loaded_rows()});
}

void Streamer::SendFenced(PeerLink& link, uint64_t sequence_id, uint32_t current_epoch) {
  Queue(link, {.type = wire::FrameType::kFenced, .sequence_id = sequence_id, .attach_epoch = current_epoch});
}

void Streamer::SendSeated(PeerLink& link, uint64_t sequence_id, uint32_t attach_epoch, uint32_t seat, bool granted) {
  Queue(link, {.type = wire::FrameType::kSeated,
               .sequence_id = sequence_id,
               .attach_epoch = attach_epoch,
               .count = seat,
               .granted = granted});
}

void Streamer::SendLandingFree(PeerLink& link, uint64_t push) {
  Queue(link, {.type = wire::FrameType::kLandingFree, .plan = push});
}

void Streamer::SendTransferFailed(PeerLink& link, uint64_t plan, const CachedSequence& sequence, int layer) {
  QueueTransferFailed(link, plan, sequence.id, sequence.attach_epoch,
                      static_cast<uint16_t>(sequence.layer_of_model(layer)));
}

void Streamer::QueueTransferFailed(PeerLink& link, uint64_t plan, uint64_t sequence_id, uint32_t attach_epoch,
                                   uint16_t layer_of_model) {
  Queue(link, {.type = wire::FrameType::kTransferFailed,
               .plan = plan,
               .sequence_id = sequence_id,
               .attach_epoch = attach_epoch,
               .layer = layer_of_model});
}

void Streamer::QueueRows(PeerLink& link, const CachedSequence& sequence, int layer, uint32_t first, uint32_t count) {
  if (count == 0) return;
  Queue(link, {.type = wire::FrameType::kRefill,
               .sequence_id = sequence.id,
               .attach_epoch = sequence.attach_epoch,
               .position = first,
               .layer = static_cast<uint16_t>(sequence.layer_of_model(layer)),
               .count = count});
}

void Streamer::QueueRefillDone(PeerLink& link, const CachedSequence& sequence, uint32_t position) {
  Queue(link, {.type = wire::FrameType::kRefillDone,
               .sequence_id = sequence.id,
               .attach_epoch = sequence.attach_epoch,
               .position = position});
}

void Streamer::SendPrefix(PeerLink& link, const CachedSequence& sequence, int first_layer, int last_layer,
                          uint32_t end) {
  for (int layer = first_layer; layer <= last_layer; ++layer) QueueRows(link, sequence, layer, 0, end);
  QueueRefillDone(link, sequence, end);
}

void Streamer::SendRefill(PeerLink& link, const CachedSequence& sequence, uint32_t restart) {
  const SelectionSpec& spec = sequence.spec;
  const uint32_t ring = wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens);
  const uint32_t sinks = std::min(spec.sink_tokens, restart);
  const uint32_t ring_first = restart > ring ? restart - ring : 0;
  for (int layer = 0; layer < sequence.layout.num_layers; ++layer) {
    const bool everything =
        ring_first <= sinks || AnyList(sequence.list(layer, 0), sequence.num_kv_heads(), [&](size_t list) {
          return AttendsEverything(spec, list, restart, sequence.prompt_tokens);
        });
    if (everything) {
      QueueRows(link, sequence, layer, 0, restart);
    } else {
      QueueRows(link, sequence, layer, 0, sinks);
      QueueRows(link, sequence, layer, ring_first, restart - ring_first);
    }
  }
  QueueRefillDone(link, sequence, restart);
}

void Streamer::Pump(PeerLink& link) {
  Outcome outcome = Outcome::kPosted;
  while (!link.outgoing.empty() && link.failure.ok() && outcome == Outcome::kPosted) {
    switch (link.outgoing.front().type) {
      case wire::FrameType::kDelta:
        outcome = PostDeltas(link);
        break;
      case wire::FrameType::kPartial:
        outcome = PostPartials(link);
        break;
      case wire::FrameType::kWatermark:
        outcome = PostWatermarks(link);
        break;
      default:
        outcome = PostBare(link, link.outgoing);
        break;
    }
  }
  // A few at a time: frames of a step may have come meanwhile.
  for (int i = 0; i < kBulkFrames && !link.bulk.empty() && link.failure.ok() && outcome == Outcome::kPosted; ++i) {
    outcome = link.bulk.front().type == wire::FrameType::kRefill ? PostRefill(link) : PostBare(link, link.bulk);
  }
  link.bulk_waits = outcome == Outcome::kBlocked;
}

const CachedSequence* Streamer::Owner(const PeerLink& link, const OutgoingItem& item) const {
  return store_->FindAttached(item.sequence_id, item.attach_epoch, link.id);
}

// Chooses what goes into the next frame: deltas of one (plan, layer) from the front of the queue, the last of them
// perhaps in part. Returns the payload's size; parts_ stays empty when the front belongs to nobody any more.
size_t Streamer::PlanDeltaFrame(PeerLink& link) {
  parts_.clear();
  size_t offset = 0;
  for (size_t i = 0; i < link.outgoing.size(); ++i) {
    const OutgoingItem& item = link.outgoing.at(i);
    const OutgoingItem& front = link.outgoing.front();
    if (item.type != wire::FrameType::kDelta || item.plan != front.plan || item.layer != front.layer) break;
    const CachedSequence* sequence = Owner(link, item);
    if (sequence == nullptr) break;  // dropped when it is at the front
    const size_t selected = item.started ? 0 : item.delta->selected.size();
    const size_t members = item.started ? 0 : item.delta->members.size();
    const size_t local = item.started ? 0 : item.delta->local.size();
    const uint32_t left = item.count - item.done;
    const size_t with_row =
        RowsOffset(offset, selected, members, left > 0 ? 1 : 0, local) + (left > 0 ? layout_.row_bytes() : 0);
    const size_t limit = parts_.empty() ? std::max(options_.frame_bytes, with_row) : options_.frame_bytes;
    if (with_row > limit) break;
    // Each further row takes its index and its bytes; alignment may cost one row's worth.
    uint32_t rows = left;
    if (RowsOffset(offset, selected, members, left, local) + left * layout_.row_bytes() > limit) {
      rows = 1 + static_cast<uint32_t>((limit - with_row) / (layout_.row_bytes() + sizeof(uint32_t)));
      while (rows > 1 && RowsOffset(offset, selected, members, rows, local) + rows * layout_.row_bytes() > limit)
        --rows;
    }
    parts_.push_back({.item = i, .sequence = sequence, .rows = rows, .last = rows == left});
    offset = RowsOffset(offset, selected, members, rows, local) + rows * layout_.row_bytes();
    if (rows < left) break;
  }
  return offset;
}

void Streamer::WriteEntry(const OutgoingItem& item, const Part& part, std::byte* payload, size_t* offset) const {
  const HeadDelta& delta = *item.delta;
  const bool first = !item.started;
  const size_t members = first ? delta.members.size() : 0;
  const wire::DeltaEntry entry{
      .plan_row = item.plan_row,
      .kv_head = item.kv_head,
      .flags = static_cast<uint16_t>((first ? wire::kDeltaFirst : 0) | (part.last ? wire::kDeltaLast : 0) |
                                     (delta.captured_mass_is_bound ? wire::kDeltaMassIsBound : 0) |
                                     (members > 0 ? wire::kDeltaMembers : 0)),
      .num_selected = first ? static_cast<uint32_t>(delta.selected.size()) : 0,
      .num_streamed = part.rows,
      .num_local = first ? static_cast<uint32_t>(delta.local.size()) : 0,
      .captured_mass = delta.captured_mass};
  Pad(alignof(wire::DeltaEntry), payload, offset);
  WriteArray(&entry, 1, payload, offset);
  WriteArray(delta.selected.data(), entry.num_selected, payload, offset);
  WriteArray(delta.members.data(), members, payload, offset);
  Pad(alignof(uint32_t), payload, offset);
  WriteArray(delta.streamed.data() + item.done, part.rows, payload, offset);
  WriteArray(delta.local.data(), entry.num_local, payload, offset);
  if (part.rows == 0) return;
  Pad(wire::kRowAlignment, payload, offset);
  const std::span<const uint32_t> positions(delta.streamed_positions);
  const KvShard& shard = part.sequence->shard;
  part.sequence->kv.GatherRows(item.layer - shard.first_layer, item.kv_head - shard.first_kv_head,
                               positions.subspan(item.done, part.rows), payload + *offset);
  *offset += part.rows * layout_.row_bytes();
}

Streamer::Outcome Streamer::PostDeltas(PeerLink& link) {
  const size_t bytes = PlanDeltaFrame(link);
  if (parts_.empty()) {
    PopFront(link.outgoing);
    return Outcome::kPosted;
  }
  absl::StatusOr<SendBuffer> buffer = link.channel->Allocate(bytes);
  if (!buffer.ok()) return NoBuffer(link, buffer.status());
  const OutgoingItem& front = link.outgoing.front();
  wire::FrameHeader header{};
  header.type = wire::FrameType::kDelta;
  header.plan = front.plan;
  header.layer_first = front.layer;
  header.row_count = static_cast<uint32_t>(parts_.size());
  size_t offset = 0;
  uint64_t rows = 0;
  for (const Part& part : parts_) {
    WriteEntry(link.outgoing.at(part.item), part, buffer->payload().data(), &offset);
    rows += part.rows;
  }
  WINNOW_CHECK(offset == bytes);
  const absl::Status posted = link.channel->Post(header, *std::move(buffer));
  if (!posted.ok()) {
    if (absl::Status failed = link.channel->failed(); !failed.ok()) {
      link.Fail(std::move(failed));
      return Outcome::kBlocked;
    }
    for (const Part& part : parts_) {
      const OutgoingItem& item = link.outgoing.at(part.item);
      metrics_->transfers_failed.Add(1);
      QueueTransferFailed(link, item.plan, item.sequence_id, item.attach_epoch, item.layer);
    }
    for (size_t i = 0; i < parts_.size(); ++i) PopFront(link.outgoing);
    return Outcome::kPosted;
  }
  metrics_->streamed_rows.Add(rows);
  metrics_->streamed_bytes.Add(rows * layout_.row_bytes());
  for (const Part& part : parts_) {
    // Parts are a prefix of the queue: finished ones leave it one by one, so that the next is at the front.
    OutgoingItem& item = link.outgoing.front();
    item.started = true;
    item.done += part.rows;
    if (part.last) PopFront(link.outgoing);
  }
  return Outcome::kPosted;
}

uint32_t Streamer::PostPrefetch(PeerLink& link, const CachedSequence& sequence, int layer, int kv_head,
                                const HeadDelta& delta, uint32_t first) {
  if (link.queued() > 0 || !link.failure.ok()) return 0;
  const size_t row_bytes = layout_.row_bytes();
  const size_t most = std::max<size_t>(1, options_.frame_bytes / (row_bytes + sizeof(uint32_t)));
  const uint32_t rows = static_cast<uint32_t>(std::min<size_t>(most, delta.streamed.size() - first));
  const size_t bytes = RowsOffset(0, 0, 0, rows, 0) + rows * row_bytes;
  absl::StatusOr<SendBuffer> buffer = link.channel->AllocateSpare(bytes);
  if (!buffer.ok()) return 0;
  std::byte* payload = buffer->payload().data();
  size_t offset = 0;
  const wire::DeltaEntry entry{.plan_row = 0,
                               .kv_head = static_cast<uint16_t>(sequence.head_of_model(kv_head)),
                               .flags = 0,
                               .num_selected = 0,
                               .num_streamed = rows,
                               .num_local = 0,
                               .captured_mass = std::numeric_limits<float>::quiet_NaN()};
  WriteArray(&entry, 1, payload, &offset);
  WriteArray(delta.streamed.data() + first, rows, payload, &offset);
  Pad(wire::kRowAlignment, payload, &offset);
  const std::span<const uint32_t> positions(delta.streamed_positions);
  sequence.kv.GatherRows(layer, kv_head, positions.subspan(first, rows), payload + offset);
  wire::FrameHeader header{};
  header.type = wire::FrameType::kDelta;
  header.phase = wire::Phase::kPrefetch;
  header.sequence_id = sequence.id;
  header.attach_epoch = sequence.attach_epoch;
  header.layer_first = static_cast<uint16_t>(sequence.layer_of_model(layer));
  header.row_count = 1;
  if (Post(link, header, *std::move(buffer)) != Outcome::kPosted) return 0;  // the link has failed
  metrics_->prefetched_rows.Add(rows);
  metrics_->prefetched_bytes.Add(rows * row_bytes);
  return rows;
}

// Verdicts of one (plan, layer) from the front of the queue, as many as fill a frame.
Streamer::Outcome Streamer::PostPartials(PeerLink& link) {
  const uint64_t plan = link.outgoing.front().plan;
  const uint16_t layer = link.outgoing.front().layer;
  size_t count = 0, bytes = 0;
  while (count < link.outgoing.size()) {
    const OutgoingItem& item = link.outgoing.at(count);
    if (item.type != wire::FrameType::kPartial || item.plan != plan || item.layer != layer) break;
    if (Owner(link, item) == nullptr) break;  // dropped when it is at the front
    const size_t entry = EntryBytes(*item.partial);
    if (count > 0 && bytes + entry > options_.frame_bytes) break;
    bytes += entry;
    ++count;
  }
  if (count == 0) {
    PopFront(link.outgoing);
    return Outcome::kPosted;
  }
  absl::StatusOr<SendBuffer> buffer = link.channel->Allocate(bytes);
  if (!buffer.ok()) return NoBuffer(link, buffer.status());
  std::byte* payload = buffer->payload().data();
  size_t offset = 0;
  for (size_t i = 0; i < count; ++i) {
    const OutgoingItem& item = link.outgoing.at(i);
    const HeadPartial& partial = *item.partial;
    const wire::PartialEntry entry{.plan_row = item.plan_row,
                                   .kv_head = item.kv_head,
                                   .flags = ActionFlag(partial.action),
                                   .mass_before = partial.mass_before,
                                   .mass_after = partial.mass_after,
                                   .rows_read = partial.rows_read};
    WriteArray(&entry, 1, payload, &offset);
    WriteArray(partial.o.data(), partial.o.size(), payload, &offset);
    WriteArray(partial.lse.data(), partial.lse.size(), payload, &offset);
  }
  WINNOW_CHECK(offset == bytes);
  wire::FrameHeader header{};
  header.type = wire::FrameType::kPartial;
  header.plan = plan;
  header.layer_first = layer;
  header.row_count = static_cast<uint32_t>(count);
  const Outcome outcome = Post(link, header, *std::move(buffer));
  for (size_t i = 0; outcome == Outcome::kPosted && i < count; ++i) PopFront(link.outgoing);
  return outcome;
}

// Inference ranks share fast memory by their numbers of sequences.
uint64_t Streamer::FastRowsBytes(const PeerLink& link) const {
  if (store_->tiers() == nullptr) return wire::kOneTier;
  const uint64_t of_all = store_->tiers()->fast().room_for_copies();
  const size_t all = std::max<size_t>(1, store_->active());
  const size_t theirs = std::clamp<size_t>(store_->CountAttached(link.id), 1, all);
  return theirs == all ? of_all : of_all / all * theirs;
}

Streamer::Outcome Streamer::PostWatermarks(PeerLink& link) {
  const uint64_t plan = link.outgoing.front().plan;
  const uint64_t fast_rows_bytes = FastRowsBytes(link);
  size_t count = 0;
  while (count < link.outgoing.size() && count < options_.frame_bytes / sizeof(wire::WatermarkEntry)) {
    const OutgoingItem& item = link.outgoing.at(count);
    if (item.type != wire::FrameType::kWatermark || item.plan != plan) break;
    ++count;
  }
  absl::StatusOr<SendBuffer> buffer = link.channel->Allocate(count * sizeof(wire::WatermarkEntry));
  if (!buffer.ok()) return NoBuffer(link, buffer.status());
  for (size_t i = 0; i < count; ++i) {
    const OutgoingItem& item = link.outgoing.at(i);
    const wire::WatermarkEntry entry{.sequence_id = item.sequence_id,
                                     .attach_epoch = item.attach_epoch,
                                     .watermark = item.position,
                                     .working_set_rows = item.working_set_rows,
                                     .loaded_rows = item.loaded_rows,
                                     .fast_rows_bytes = fast_rows_bytes};
    std::memcpy(buffer->payload().data() + i * sizeof entry, &entry, sizeof entry);
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kWatermark;
  header.plan = plan;
  header.row_count = static_cast<uint32_t>(count);
  const Outcome outcome = Post(link, header, *std::move(buffer));
  for (size_t i = 0; outcome == Outcome::kPosted && i < count; ++i) PopFront(link.outgoing);
  return outcome;
}

Streamer::Outcome Streamer::PostRefill(PeerLink& link) {
  OutgoingItem& item = link.bulk.front();
  const CachedSequence* sequence = Owner(link, item);
  if (sequence == nullptr) {
    PopFront(link.bulk);
    return Outcome::kPosted;
  }
  const int num_kv_heads = sequence->layout.num_kv_heads;
  const size_t token_bytes = num_kv_heads * layout_.row_bytes();
  const uint32_t most = std::max<uint32_t>(1, static_cast<uint32_t>(options_.frame_bytes / token_bytes));
  const uint32_t rows = std::min(most, item.count - item.done);
  absl::StatusOr<SendBuffer> buffer = link.channel->AllocateBulk(rows * token_bytes);
  if (!buffer.ok()) return NoBuffer(link, buffer.status());
  const uint32_t first = item.position + item.done;
  for (int head = 0; head < num_kv_heads; ++head) {
    sequence->kv.CopyRows(item.layer - sequence->shard.first_layer, head, first, rows,
                          buffer->payload().data() + head * rows * layout_.row_bytes());
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kRefill;
  header.sequence_id = item.sequence_id;
  header.attach_epoch = item.attach_epoch;
  header.apply_position = first;
  header.layer_first = item.layer;
  header.row_count = rows;
  const Outcome outcome = Post(link, header, *std::move(buffer));
  if (outcome == Outcome::kPosted) {
    metrics_->refilled_bytes.Add(rows * token_bytes);
    item.done += rows;
    if (item.done == item.count) PopFront(link.bulk);
  }
  return outcome;
}

Streamer::Outcome Streamer::PostBare(PeerLink& link, RingQueue<OutgoingItem>& queue) {
  const OutgoingItem& item = queue.front();
  absl::StatusOr<SendBuffer> buffer = link.channel->Allocate(0);
  if (!buffer.ok()) return NoBuffer(link, buffer.status());
  wire::FrameHeader header{};
  header.type = item.type;
  header.plan = item.plan;
  header.sequence_id = item.sequence_id;
  header.attach_epoch = item.attach_epoch;
  header.apply_position = item.position;
  header.layer_first = item.layer;
  if (item.type == wire::FrameType::kSeated) {
    header.row_count = item.count;
    header.flags = item.granted ? wire::kSeatGranted : 0;
  }
  const Outcome outcome = Post(link, header, *std::move(buffer));
  if (outcome == Outcome::kPosted) PopFront(queue);
  return outcome;
}

Streamer::Outcome Streamer::Post(PeerLink& link, const wire::FrameHeader& header, SendBuffer buffer) {
  absl::Status posted = link.channel->Post(header, std::move(buffer));
  if (posted.ok()) return Outcome::kPosted;
  link.Fail(std::move(posted));
  return Outcome::kBlocked;
}

Streamer::Outcome Streamer::NoBuffer(PeerLink& link, const absl::Status& status) {
  // RESOURCE_EXHAUSTED: the window is used up; the queue waits for the peer to consume.
  if (status.code() != absl::StatusCode::kResourceExhausted) link.Fail(status);
  return Outcome::kBlocked;
}

}  // namespace winnow
