// What an engine does with frames of cache ranks: watermarks, refills, prefetched rows, refusals.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/selection/attended_set.h"
#include "inference_rank/engine/engine.h"
#include "inference_rank/step/prefetch_commit.h"
#include "transport/wire/fence_reason.h"

namespace winnow {
namespace {

using State = Sequence::State;

}  // namespace

void Engine::OnFrame(Channel& channel, ReceivedFrame frame) {
  CacheLink* link = links_.Find(channel);
  if (link == nullptr) return;
  link->NoteHeard();
  const wire::FrameHeader& header = frame.header();
  switch (header.type) {
    case wire::FrameType::kDelta:
      if (header.phase == wire::Phase::kPrefetch) break;  // of one sequence, outside of plans
      if (absl::Status status = decode_step_.OnDelta(*link, std::move(frame)); !status.ok())
        DistrustLink(*link, status);
      return;
    case wire::FrameType::kPartial:
      if (absl::Status status = decode_step_.OnPartial(*link, frame); !status.ok()) DistrustLink(*link, status);
      return;
    case wire::FrameType::kWatermark:
      OnWatermarks(*link, frame);
      return;
    case wire::FrameType::kStagingFree:
      if (!link->staging_places().SetFree(header.plan)) {
        DistrustLink(*link, absl::InvalidArgumentError(absl::StrCat("push ", header.plan, " was not under way")));
      }
      return;
    default:
      break;
  }
  Sequence* sequence = scheduler_.Find([&](const Sequence& candidate) {
    if (candidate.sequence_id != header.sequence_id) return false;
    return candidate.shards.empty() || candidate.FindShard(*link) != nullptr;
  });
  if (sequence == nullptr) {
    ++metrics_.stale_frames;
    return;
  }
  switch (header.type) {
    case wire::FrameType::kDelta:
      OnPrefetch(*link, *sequence, frame);
      return;
    case wire::FrameType::kRefill:
    case wire::FrameType::kStateRefill:
    case wire::FrameType::kRefillDone:
      if (sequence->state == State::kOpening) {
        sequence->early_frames.emplace_back(link, std::move(frame));
      } else if (const ShardLink* shard = sequence->FindShard(*link); shard != nullptr) {
        TakeRefill(*sequence, *shard, std::move(frame));
      } else {
        ++metrics_.stale_frames;
      }
      return;
    case wire::FrameType::kBatchRowAnswer:
      OnBatchRowAnswer(*link, *sequence, header);
      return;
    case wire::FrameType::kFenced:
      // Until the answer to Attach says which epoch it has, it cannot be told whether that is the older one.
      if (sequence->state == State::kOpening && sequence->shards.empty() && header.attach_epoch > 0) {
        sequence->early_frames.emplace_back(link, std::move(frame));
        return;
      }
      return OnFenced(*link, *sequence, header);
    case wire::FrameType::kTransferFailed:
      if (const ShardLink* shard = sequence->FindShard(*link);
          shard != nullptr && header.attach_epoch == shard->attach_epoch) {
        sequence->Fail(absl::UnavailableError("the cache rank could not send rows"), true);
      } else {
        ++metrics_.stale_frames;
      }
      return;
    case wire::FrameType::kPrefixStates:
      if (const ShardLink* shard = sequence->FindShard(*link); shard != nullptr) {
        TakePrefixStates(*sequence, *shard, frame);
      } else {
        ++metrics_.stale_frames;
      }
      return;
    default:
      DistrustLink(*link, absl::InvalidArgumentError(absl::StrCat("frame type ", static_cast<int>(header.type))));
  }
}

void Engine::OnFenced(const CacheLink& link, Sequence& sequence, const wire::FrameHeader& header) {
  const ShardLink* shard = sequence.FindShard(link);
  const uint32_t current_epoch = header.attach_epoch;
  const bool lost = current_epoch == 0;
  if (lost && header.flags == wire::kFencedForDamage) {  // perhaps before it is known to be open
    ++metrics_.fenced_sequences;
    return sequence.Fail(absl::DataLossError(absl::StrCat("the stored row of layer ", header.layer_first,
                                                          " at position ", header.apply_position, " on cache rank ",
                                                          link.peer().rank(), " is not what was written")),
                         /*can_retry=*/true, lost);
  }
  // Of an attachment that this one came after.
  if (shard == nullptr || (!lost && current_epoch < shard->attach_epoch)) {
    ++metrics_.stale_frames;
    return;
  }
  sequence.taken_over |= !lost;
  if (sequence.state == State::kHandedOver) {
    sequence.cancelled = true;
    return;
  }
  ++metrics_.fenced_sequences;
  // If another attempt of the router's has taken it over, the router hears this of an attempt that it has given up. If
  // that was an earlier attempt, which came late, it makes another.
  sequence.Fail(
      absl::AbortedError(lost ? "the cache rank lost the sequence" : "another rank has attached to the sequence"),
      /*can_retry=*/true, lost);
}

void Engine::OnPrefetch(CacheLink& link, Sequence& sequence, const ReceivedFrame& frame) {
  const ShardLink* shard = sequence.FindShard(link);
  // Of another attachment: the pool that it was meant for is gone.
  if (sequence.state != State::kDecoding || shard == nullptr || frame.header().attach_epoch != shard->attach_epoch) {
    ++metrics_.stale_frames;
    return;
  }
  const absl::StatusOr<uint32_t> rows =
      CommitPrefetch(layout_, shard->shard, frame, *sequence.working_set, sequence.trace ? &*sequence.trace : nullptr);
  if (!rows.ok()) return DistrustLink(link, rows.status());
  sequence.prefetched_rows += *rows;
  metrics_.prefetched_rows += *rows;
}

void Engine::OnWatermarks(CacheLink& link, const ReceivedFrame& frame) {
  const size_t count =
      std::min<size_t>(frame.header().row_count, frame.payload().size() / sizeof(wire::WatermarkEntry));
  const auto* entries = reinterpret_cast<const wire::WatermarkEntry*>(frame.payload().data());
  for (size_t i = 0; i < count; ++i) {
    link.set_fast_rows_bytes(entries[i].fast_rows_bytes);
    Sequence* sequence = scheduler_.Find([&](const Sequence& candidate) {
      if (candidate.sequence_id != entries[i].sequence_id) return false;
      const ShardLink* of_link = candidate.FindShard(link);
      return of_link != nullptr && of_link->attach_epoch == entries[i].attach_epoch;
    });
    if (sequence == nullptr) continue;
    ShardLink* shard = sequence->FindShard(link);
    shard->watermark = std::max(shard->watermark, entries[i].watermark);
    if (sequence->state == State::kDecoding) {
      shard->working_set_bytes = entries[i].working_set_rows * layout_.row_bytes();
    }
    sequence->UpdateWatermark();
    if (shard == &sequence->shards.front()) sequence->stored_state_position = entries[i].state_position;
    HandOverIfStored(*sequence);
  }
}

void Engine::TakeRefill(Sequence& sequence, const ShardLink& shard, ReceivedFrame frame) {
  const bool refills = sequence.state == State::kRefilling;
  // Of a prefix that stays there, rows for decoding come while its prompt is computed.
  const bool loads_prefix =
      sequence.state == State::kLoadingPrefix || (sequence.remote_prefix.has_value() && sequence.refills_due > 0);
  if (frame.header().attach_epoch != shard.attach_epoch || (!refills && !loads_prefix)) {
    ++metrics_.stale_frames;
  } else if (frame.header().type == wire::FrameType::kRefillDone) {
    if (--sequence.refills_due == 0) OnRefilled(sequence);
  } else if (frame.header().type == wire::FrameType::kStateRefill) {
    LoadState(sequence, shard, frame);
  } else if (refills) {
    LoadRefilledRows(sequence, shard, frame);
  } else {
    LoadPrefixRows(sequence, shard, std::move(frame));
  }
}

void Engine::OnRefilled(Sequence& sequence) {
  if (LacksState(sequence)) {  // it was found damaged, or is gone
    return sequence.Fail(absl::UnavailableError("the cache rank could not send the sequence's state"), true);
  }
  if (sequence.remote_prefix.has_value()) return UpdatePrefixState(sequence);
  if (sequence.state == State::kLoadingPrefix) {
    const int layers = sequence.arena->by_layer() ? 1 : layout_.num_layers;
    const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - sequence.prefix_asked;
    const size_t layer_row_bytes = layout_.token_bytes() / layout_.num_layers;
    const size_t bytes = layer_row_bytes * layers * (sequence.stored_tokens - ResidentPrefixEnd(sequence));
    prefix_times_.ObserveRows(static_cast<double>(bytes), taken.count());
    sequence.state = State::kPrefilling;
    return;
  }
  if (MayShareRows(sequence)) KeepRows(sequence, sequence.prompt_tokens() - 1);
  // A selection that is kept in place lies with the row that the sequence had: its anchor is computed once more.
  if (sequence.selects_in_place()) {
    sequence.next_position = AnchorPosition(sequence.spec, sequence.next_position, sequence.prompt_tokens());
  }
  BecomeDecoding(sequence, sequence.next_position);
}

void Engine::LoadPrefixRows(Sequence& sequence, const ShardLink& shard, ReceivedFrame frame) {
  const wire::FrameHeader header = frame.header();
  const size_t row_bytes = layout_.row_bytes();
  const size_t head_bytes = header.row_count * row_bytes;
  const bool is_wanted = !sequence.arena->by_layer() || header.layer_first == sequence.arena->layer;
  const bool fits = shard.shard.HasLayer(header.layer_first) && is_wanted &&
                    uint64_t{header.apply_position} + header.row_count <= sequence.stored_tokens &&
                    frame.payload().size() == shard.shard.num_kv_heads * head_bytes;
  if (!fits) {
    const absl::Status status =
        absl::InvalidArgumentError(absl::StrCat("prefix rows of ", frame.payload().size(), " bytes"));
    return DistrustLink(*shard.link, status);
  }
  (sequence.remote_prefix.has_value() ? metrics_.remote_prefix_bytes : metrics_.stream_back_bytes) +=
      frame.payload().size();
  const PrefillArena& arena = *sequence.arena;
  const std::byte* const rows = frame.payload().data();
  const std::shared_ptr<const void> keep = std::make_shared<ReceivedFrame>(std::move(frame));
  // The heads of each part together.
  const int first_head = shard.shard.first_kv_head, end_head = first_head + shard.shard.num_kv_heads;
  for (int head = first_head, end = head; head < end_head; head = end) {
    const int part = arena.part_of(head);
    while (end < end_head && arena.part_of(end) == part) ++end;
    slots_.WriteBeside(part,
                       {.to = arena.row(header.layer_first, head, header.apply_position),
                        .to_stride = arena.prompt_tokens() * row_bytes,
                        .from = rows + (head - first_head) * head_bytes,
                        .from_stride = head_bytes,
                        .piece_bytes = head_bytes,
                        .num_pieces = static_cast<size_t>(end - head)},
                       keep);
  }
}

void Engine::LoadRefilledRows(Sequence& sequence, const ShardLink& shard, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  const size_t head_bytes = header.row_count * layout_.row_bytes();
  if (!shard.shard.HasLayer(header.layer_first) || frame.payload().size() != shard.shard.num_kv_heads * head_bytes) {
    const absl::Status status =
        absl::InvalidArgumentError(absl::StrCat("refill of ", frame.payload().size(), " bytes"));
    return DistrustLink(*shard.link, status);
  }
  for (int head = 0; head < shard.shard.num_kv_heads; ++head) {
    sequence.working_set->LoadRows(header.layer_first, shard.shard.first_kv_head + head, header.apply_position,
                                   header.row_count, frame.payload().data() + head * head_bytes,
                                   sequence.next_position);
  }
}

}  // namespace winnow
