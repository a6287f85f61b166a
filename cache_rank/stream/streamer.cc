#include "cache_rank/stream/streamer.h"

#include <algorithm>
#include <utility>

namespace winnow {
namespace {

// What names the plan row and list (of the shard) that an entry of a step is for.
OutgoingItem EntryOf(const CachedSequence& sequence, int layer, int kv_head) {
  return {.plan = sequence.planned.plan,
          .sequence_id = sequence.id,
          .attach_epoch = sequence.attach_epoch,
          .position = sequence.planned.position,
          .layer = static_cast<uint16_t>(sequence.layer_of_model(layer)),
          .kv_head = static_cast<uint16_t>(sequence.head_of_model(kv_head)),
          .plan_row = sequence.planned.row};
}

}  // namespace

size_t Streamer::FrameBytes(const Options& options, int num_threads) {
  constexpr size_t kLeast = size_t{256} << 10, kOfThread = size_t{32} << 10;
  if (options.frame_bytes > 0) return options.frame_bytes;
  return std::clamp(kOfThread * static_cast<size_t>(num_threads), kLeast, wire::kMaxPayloadBytes);
}

void Streamer::SendDelta(InferenceLink& link, const CachedSequence& sequence, int layer, int kv_head,
                         std::unique_ptr<HeadDelta> delta) {
  metrics_->selection_lookups.Add(delta->selected.size());
  metrics_->selection_hits.Add(delta->selected.size() - delta->streamed.size() - delta->local.size());
  metrics_->local_rows.Add(delta->local.size());
  metrics_->prefetch_hits.Add(delta->prefetch_hits);
  OutgoingItem item = EntryOf(sequence, layer, kv_head);
  item.type = wire::FrameType::kDelta;
  item.delta = std::move(delta);
  outbox_.Push(link, std::move(item));
}

void Streamer::SendPartial(InferenceLink& link, const CachedSequence& sequence, int layer, int kv_head,
                           std::unique_ptr<HeadPartial> partial) {
  OutgoingItem item = EntryOf(sequence, layer, kv_head);
  item.type = wire::FrameType::kPartial;
  item.partial = std::move(partial);
  outbox_.Push(link, std::move(item));
}

void Streamer::SendWatermark(InferenceLink& link, uint64_t plan, const CachedSequence& sequence) {
  outbox_.Push(link, {.type = wire::FrameType::kWatermark,
                      .plan = plan,
                      .sequence_id = sequence.id,
                      .attach_epoch = sequence.attach_epoch,
                      .position = sequence.kv.watermark(),
                      .working_set_rows = sequence.WorkingSetRows(),
                      .loaded_rows = sequence.kv.loaded_rows(),
                      .state_position = sequence.states.newest_position()});
}

void Streamer::SendFenced(InferenceLink& link, uint64_t sequence_id, uint32_t current_epoch) {
  outbox_.Push(link, {.type = wire::FrameType::kFenced, .sequence_id = sequence_id, .attach_epoch = current_epoch});
}

void Streamer::SendDamaged(InferenceLink& link, const CachedSequence& sequence, const DamagedRow& row) {
  outbox_.Push(link, {.type = wire::FrameType::kFenced,
                      .sequence_id = sequence.id,
                      .attach_epoch = 0,
                      .position = row.position,
                      .layer = static_cast<uint16_t>(sequence.layer_of_model(row.layer)),
                      .damaged = true});
}

void Streamer::SendBatchRowAnswer(InferenceLink& link, uint64_t sequence_id, uint32_t attach_epoch, uint32_t batch_row,
                                  bool granted) {
  outbox_.Push(link, {.type = wire::FrameType::kBatchRowAnswer,
                      .sequence_id = sequence_id,
                      .attach_epoch = attach_epoch,
                      .count = batch_row,
                      .granted = granted});
}

void Streamer::SendStagingFree(InferenceLink& link, uint64_t push) {
  outbox_.Push(link, {.type = wire::FrameType::kStagingFree, .plan = push});
}

void Streamer::SendTransferFailed(InferenceLink& link, uint64_t plan, const CachedSequence& sequence, int layer) {
  outbox_.Push(link, {.type = wire::FrameType::kTransferFailed,
                      .plan = plan,
                      .sequence_id = sequence.id,
                      .attach_epoch = sequence.attach_epoch,
                      .layer = static_cast<uint16_t>(sequence.layer_of_model(layer))});
}

void Streamer::QueueRows(InferenceLink& link, const CachedSequence& sequence, int layer, uint32_t first,
                         uint32_t count) {
  if (count == 0) return;
  outbox_.Push(link, {.type = wire::FrameType::kRefill,
                      .sequence_id = sequence.id,
                      .attach_epoch = sequence.attach_epoch,
                      .position = first,
                      .layer = static_cast<uint16_t>(sequence.layer_of_model(layer)),
                      .count = count});
}

void Streamer::QueueRefillDone(InferenceLink& link, const CachedSequence& sequence, uint32_t position) {
  outbox_.Push(link, {.type = wire::FrameType::kRefillDone,
                      .sequence_id = sequence.id,
                      .attach_epoch = sequence.attach_epoch,
                      .position = position});
}

void Streamer::SendPrefix(InferenceLink& link, const CachedSequence& sequence, const PrefixRows& rows) {
  for (uint32_t i = 0; i < rows.num_layers; ++i) {
    const int layer = static_cast<int>(rows.layer + i);
    QueueRows(link, sequence, layer, 0, std::min(rows.sinks, rows.first));
    QueueRows(link, sequence, layer, rows.first, rows.end - rows.first);
  }
  QueueRefillDone(link, sequence, rows.end);
}

void Streamer::SendState(InferenceLink& link, const CachedSequence& sequence, uint32_t position) {
  outbox_.Push(link, {.type = wire::FrameType::kStateRefill,
                      .sequence_id = sequence.id,
                      .attach_epoch = sequence.attach_epoch,
                      .position = position});
}

void Streamer::SendPrefixStates(InferenceLink& link, const CachedSequence& sequence, PrefixQueries& attended) {
  outbox_.Push(link, {.type = wire::FrameType::kPrefixStates,
                      .sequence_id = sequence.id,
                      .attach_epoch = sequence.attach_epoch,
                      .position = attended.first,
                      .layer = static_cast<uint16_t>(sequence.layer_of_model(attended.layer)),
                      .states = std::move(attended.states),
                      .count = attended.count,
                      .end_key = attended.end_key});
}

void Streamer::SendRefill(InferenceLink& link, const CachedSequence& sequence, uint32_t restart, bool all_rows) {
  const SelectionSpec& spec = sequence.spec;
  const uint32_t ring = wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens);
  const uint32_t sinks = std::min(spec.sink_tokens, restart);
  const uint32_t ring_first = restart > ring ? restart - ring : 0;
  for (int layer = 0; layer < sequence.layout.num_layers; ++layer) {
    const bool everything =
        all_rows || ring_first <= sinks || AnyList(sequence.list(layer, 0), sequence.num_kv_heads(), [&](size_t list) {
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

}  // namespace winnow
