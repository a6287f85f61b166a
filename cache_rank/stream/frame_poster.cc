#include "cache_rank/stream/frame_poster.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "common/base/check.h"
#include "transport/wire/fence_reason.h"

namespace winnow {
namespace {

constexpr int kBulkFrames = 2;  // posted between two polls

// What the headers of all frames of an item say.
wire::FrameHeader HeaderOf(const OutgoingItem& item) {
  wire::FrameHeader header{};
  header.type = item.type;
  header.sequence_id = item.sequence_id;
  header.attach_epoch = item.attach_epoch;
  header.apply_position = item.position;
  header.layer_first = item.layer;
  return header;
}

}  // namespace

void FramePoster::Pump(InferenceLink& link) {
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
    switch (link.bulk.front().type) {
      case wire::FrameType::kRefill:
        outcome = PostRefill(link);
        break;
      case wire::FrameType::kStateRefill:
        outcome = PostState(link);
        break;
      case wire::FrameType::kPrefixStates:
        outcome = PostPrefixStates(link);
        break;
      default:
        outcome = PostBare(link, link.bulk);
        break;
    }
  }
  link.bulk_waits = outcome == Outcome::kBlocked;
}

const CachedSequence* FramePoster::Owner(const InferenceLink& link, const OutgoingItem& item) const {
  const CachedSequence* sequence = store_->FindAttached(item.sequence_id, item.attach_epoch, link.id);
  return sequence == nullptr || sequence->kv.is_damaged() ? nullptr : sequence;
}

void FramePoster::FillDeltaFrame(InferenceLink& link, Place* place, DeltaFrame* frame) {
  const OutgoingItem& front = link.outgoing.front();
  while (place->item < link.outgoing.size()) {
    const OutgoingItem& item = link.outgoing.at(place->item);
    if (item.type != wire::FrameType::kDelta || item.plan != front.plan || item.layer != front.layer) return;
    const CachedSequence* sequence = Owner(link, item);
    if (sequence == nullptr) return;  // dropped when it is at the front
    const bool added = frame->Add({.delta = item.delta.get(),
                                   .kv = &sequence->kv,
                                   .layer = item.layer - sequence->shard.first_layer,
                                   .kv_head = item.kv_head - sequence->shard.first_kv_head,
                                   .kv_head_of_model = item.kv_head,
                                   .plan_row = item.plan_row,
                                   .begins = !place->started,
                                   .first = place->done,
                                   .tells_positions = sequence->planned.tells_positions});
    if (!added) return;
    const DeltaPart& part = frame->parts().back();
    *place = part.ends ? Place{.item = place->item + 1}
                       : Place{.item = place->item, .started = true, .done = place->done + part.rows};
  }
}

FramePoster::Outcome FramePoster::PostDeltas(InferenceLink& link) {
  // What is behind the front has not been begun.
  Place place{.item = 0, .started = link.outgoing.front().started, .done = link.outgoing.front().done};
  absl::Status no_buffer;
  delta_frames_.Clear();
  while (delta_frames_.size() < DeltaFrames::kMost) {
    DeltaFrame& frame = delta_frames_.Next();
    FillDeltaFrame(link, &place, &frame);
    if (frame.parts().empty()) break;
    absl::StatusOr<SendBuffer> buffer = link.channel->Allocate(frame.bytes());
    if (!buffer.ok()) {
      no_buffer = buffer.status();
      break;
    }
    delta_frames_.Take(*std::move(buffer));
  }
  if (delta_frames_.size() == 0) {
    if (!no_buffer.ok()) return NoBuffer(link, no_buffer);
    outbox_->Pop(link.outgoing);
    return Outcome::kPosted;
  }
  delta_frames_.Send(team_, [&](size_t i, SendBuffer buffer) {
    return PostDeltaFrame(link, delta_frames_.frame(i), std::move(buffer));
  });
  return link.failure.ok() ? Outcome::kPosted : Outcome::kBlocked;
}

bool FramePoster::PostDeltaFrame(InferenceLink& link, const DeltaFrame& frame, SendBuffer buffer) {
  const std::span<const DeltaPart> parts = frame.parts();
  if (frame.has_damage()) return false;  // not at all: the next frame leaves that sequence out
  const OutgoingItem& front = link.outgoing.front();
  wire::FrameHeader header{};
  header.type = wire::FrameType::kDelta;
  header.plan = front.plan;
  header.layer_first = front.layer;
  header.row_count = static_cast<uint32_t>(parts.size());
  const absl::Status posted = link.channel->Post(header, std::move(buffer));
  if (!posted.ok()) {
    if (absl::Status failed = link.channel->failed(); !failed.ok()) {
      link.Fail(std::move(failed));
      return false;
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      const OutgoingItem& item = link.outgoing.at(i);
      metrics_->transfers_failed.Add(1);
      outbox_->Push(link, {.type = wire::FrameType::kTransferFailed,
                           .plan = item.plan,
                           .sequence_id = item.sequence_id,
                           .attach_epoch = item.attach_epoch,
                           .layer = item.layer});
    }
    for (size_t i = 0; i < parts.size(); ++i) outbox_->Pop(link.outgoing);
    return false;
  }
  metrics_->streamed_rows.Add(frame.rows());
  metrics_->streamed_bytes.Add(frame.rows() * layout_.row_bytes());
  for (const DeltaPart& part : parts) {
    // Finished ones leave the queue one by one, so that the next is at the front.
    OutgoingItem& item = link.outgoing.front();
    item.started = true;
    item.done += part.rows;
    if (part.ends) outbox_->Pop(link.outgoing);
  }
  return true;
}

uint32_t FramePoster::PostPrefetch(InferenceLink& link, const CachedSequence& sequence, int layer, int kv_head,
                                   const HeadDelta& delta, uint32_t first) {
  if (link.queued() > 0 || !link.failure.ok()) return 0;
  const size_t most = std::max<size_t>(1, frame_bytes_ / (layout_.row_bytes() + 2 * sizeof(uint32_t)));
  const DeltaPart part{.delta = &delta,
                       .kv = &sequence.kv,
                       .layer = layer,
                       .kv_head = kv_head,
                       .kv_head_of_model = static_cast<uint16_t>(sequence.head_of_model(kv_head)),
                       .first = first,
                       .rows = static_cast<uint32_t>(std::min<size_t>(most, delta.streamed.size() - first)),
                       .tells_positions = sequence.planned.tells_positions};
  absl::StatusOr<SendBuffer> buffer = link.channel->AllocateSpare(DeltaPartEnd(0, part));
  if (!buffer.ok()) return 0;
  size_t offset = 0;
  const WantedRows rows = WriteDeltaPart(part, buffer->payload().data(), &offset);
  SequenceKv::GatherRows({&rows, 1}, team_);
  if (sequence.kv.is_damaged()) return 0;
  wire::FrameHeader header{};
  header.type = wire::FrameType::kDelta;
  header.phase = wire::Phase::kPrefetch;
  header.sequence_id = sequence.id;
  header.attach_epoch = sequence.attach_epoch;
  header.layer_first = static_cast<uint16_t>(sequence.layer_of_model(layer));
  header.row_count = 1;
  if (Post(link, header, *std::move(buffer)) != Outcome::kPosted) return 0;  // the link has failed
  metrics_->prefetched_rows.Add(part.rows);
  metrics_->prefetched_bytes.Add(part.RowBytes());
  return part.rows;
}

// Verifications of one (plan, layer) from the front of the queue, as many as fill a frame.
FramePoster::Outcome FramePoster::PostPartials(InferenceLink& link) {
  const uint64_t plan = link.outgoing.front().plan;
  const uint16_t layer = link.outgoing.front().layer;
  size_t count = 0, bytes = 0;
  while (count < link.outgoing.size()) {
    const OutgoingItem& item = link.outgoing.at(count);
    if (item.type != wire::FrameType::kPartial || item.plan != plan || item.layer != layer) break;
    if (Owner(link, item) == nullptr) break;  // dropped when it is at the front
    const size_t entry = PartialEntryBytes(*item.partial);
    if (count > 0 && bytes + entry > frame_bytes_) break;
    bytes += entry;
    ++count;
  }
  if (count == 0) {
    outbox_->Pop(link.outgoing);
    return Outcome::kPosted;
  }
  absl::StatusOr<SendBuffer> buffer = link.channel->Allocate(bytes);
  if (!buffer.ok()) return NoBuffer(link, buffer.status());
  std::byte* payload = buffer->payload().data();
  size_t offset = 0;
  for (size_t i = 0; i < count; ++i) {
    const OutgoingItem& item = link.outgoing.at(i);
    WritePartialEntry(*item.partial, item.plan_row, item.kv_head, payload, &offset);
  }
  WINNOW_CHECK(offset == bytes);
  wire::FrameHeader header{};
  header.type = wire::FrameType::kPartial;
  header.plan = plan;
  header.layer_first = layer;
  header.row_count = static_cast<uint32_t>(count);
  const Outcome outcome = Post(link, header, *std::move(buffer));
  for (size_t i = 0; outcome == Outcome::kPosted && i < count; ++i) outbox_->Pop(link.outgoing);
  return outcome;
}

// Inference ranks share fast memory by their numbers of sequences.
uint64_t FramePoster::FastRowsBytes(const InferenceLink& link) const {
  if (store_->tiers() == nullptr) return wire::kOneTier;
  const uint64_t of_all = store_->tiers()->fast().room_for_copies();
  const size_t all = std::max<size_t>(1, store_->active());
  const size_t theirs = std::clamp<size_t>(store_->CountAttached(link.id), 1, all);
  return theirs == all ? of_all : of_all / all * theirs;
}

FramePoster::Outcome FramePoster::PostWatermarks(InferenceLink& link) {
  const uint64_t plan = link.outgoing.front().plan;
  const uint64_t fast_rows_bytes = FastRowsBytes(link);
  size_t count = 0;
  while (count < link.outgoing.size() && count < frame_bytes_ / sizeof(wire::WatermarkEntry)) {
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
                                     .fast_rows_bytes = fast_rows_bytes,
                                     .state_position = item.state_position,
                                     .reserved = 0};
    std::memcpy(buffer->payload().data() + i * sizeof entry, &entry, sizeof entry);
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kWatermark;
  header.plan = plan;
  header.row_count = static_cast<uint32_t>(count);
  const Outcome outcome = Post(link, header, *std::move(buffer));
  for (size_t i = 0; outcome == Outcome::kPosted && i < count; ++i) outbox_->Pop(link.outgoing);
  return outcome;
}

FramePoster::Outcome FramePoster::PostRefill(InferenceLink& link) {
  OutgoingItem& item = link.bulk.front();
  const CachedSequence* sequence = Owner(link, item);
  if (sequence == nullptr) {
    outbox_->Pop(link.bulk);
    return Outcome::kPosted;
  }
  const size_t token_bytes = sequence->layout.num_kv_heads * layout_.row_bytes();
  const size_t most_bytes = std::min(kBulkSize * frame_bytes_, wire::kMaxPayloadBytes);
  const uint32_t most = std::max<uint32_t>(1, static_cast<uint32_t>(most_bytes / token_bytes));
  const uint32_t rows = std::min(most, item.count - item.done);
  absl::StatusOr<SendBuffer> buffer = link.channel->AllocateBulk(rows * token_bytes);
  if (!buffer.ok()) return NoBuffer(link, buffer.status());
  const uint32_t first = item.position + item.done;
  sequence->kv.CopyLayerRows(item.layer - sequence->shard.first_layer, first, rows, buffer->payload().data(), team_);
  if (sequence->kv.is_damaged()) return Outcome::kPosted;  // dropped when it is at the front again
  wire::FrameHeader header = HeaderOf(item);
  header.apply_position = first;
  header.row_count = rows;
  const Outcome outcome = Post(link, header, *std::move(buffer));
  if (outcome == Outcome::kPosted) {
    metrics_->refilled_bytes.Add(rows * token_bytes);
    item.done += rows;
    if (item.done == item.count) outbox_->Pop(link.bulk);
  }
  return outcome;
}

FramePoster::Outcome FramePoster::PostState(InferenceLink& link) {
  OutgoingItem& item = link.bulk.front();
  const CachedSequence* sequence = Owner(link, item);
  const StateSnapshot* state = sequence == nullptr ? nullptr : sequence->states.Find(item.position);
  if (state == nullptr) {
    outbox_->Pop(link.bulk);
    return Outcome::kPosted;
  }
  const StateSnapshots& states = sequence->states;
  const size_t bytes =
      std::min<uint64_t>({kBulkSize * frame_bytes_, wire::kMaxPayloadBytes, states.state_bytes() - item.done_bytes});
  absl::StatusOr<SendBuffer> buffer = link.channel->AllocateBulk(bytes);
  if (!buffer.ok()) return NoBuffer(link, buffer.status());
  state->Read(item.done_bytes, buffer->payload(), states.block_bytes());
  wire::FrameHeader header = HeaderOf(item);
  header.plan = item.done_bytes;
  const Outcome outcome = Post(link, header, *std::move(buffer));
  if (outcome == Outcome::kPosted) {
    item.done_bytes += bytes;
    if (item.done_bytes == states.state_bytes()) outbox_->Pop(link.bulk);
  }
  return outcome;
}

FramePoster::Outcome FramePoster::PostPrefixStates(InferenceLink& link) {
  const OutgoingItem& item = link.bulk.front();
  if (Owner(link, item) == nullptr) {
    outbox_->Pop(link.bulk);
    return Outcome::kPosted;
  }
  const size_t bytes = item.states.size() * sizeof(float);
  absl::StatusOr<SendBuffer> buffer = link.channel->AllocateBulk(bytes);
  if (!buffer.ok()) return NoBuffer(link, buffer.status());
  std::memcpy(buffer->payload().data(), item.states.data(), bytes);
  wire::FrameHeader header = HeaderOf(item);
  header.flags = item.end_key;
  header.row_count = item.count;
  const Outcome outcome = Post(link, header, *std::move(buffer));
  if (outcome == Outcome::kPosted) outbox_->Pop(link.bulk);
  return outcome;
}

FramePoster::Outcome FramePoster::PostBare(InferenceLink& link, RingQueue<OutgoingItem>& queue) {
  const OutgoingItem& item = queue.front();
  if (item.type == wire::FrameType::kRefillDone && Owner(link, item) == nullptr) {  // of rows that did not go
    outbox_->Pop(queue);
    return Outcome::kPosted;
  }
  absl::StatusOr<SendBuffer> buffer = link.channel->Allocate(0);
  if (!buffer.ok()) return NoBuffer(link, buffer.status());
  wire::FrameHeader header = HeaderOf(item);
  header.plan = item.plan;
  if (item.type == wire::FrameType::kBatchRowAnswer) {
    header.row_count = item.count;
    header.flags = item.granted ? wire::kBatchRowGranted : 0;
  }
  if (item.damaged) header.flags = wire::kFencedForDamage;
  const Outcome outcome = Post(link, header, *std::move(buffer));
  if (outcome == Outcome::kPosted) outbox_->Pop(queue);
  return outcome;
}

FramePoster::Outcome FramePoster::Post(InferenceLink& link, const wire::FrameHeader& header, SendBuffer buffer) {
  absl::Status posted = link.channel->Post(header, std::move(buffer));
  if (posted.ok()) return Outcome::kPosted;
  link.Fail(std::move(posted));
  return Outcome::kBlocked;
}

FramePoster::Outcome FramePoster::NoBuffer(InferenceLink& link, const absl::Status& status) {
  // RESOURCE_EXHAUSTED: the window is used up; the queue waits for the peer to consume.
  if (status.code() != absl::StatusCode::kResourceExhausted) link.Fail(status);
  return Outcome::kBlocked;
}

}  // namespace winnow
