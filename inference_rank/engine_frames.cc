// What an engine does with frames of cache ranks: watermarks, refills, prefetched rows, refusals.
#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "inference_rank/engine.h"
#include "inference_rank/prefetch_commit.h"

namespace winnow {
namespace {

using State = Sequence::State;

}  // namespace

void Engine::OnFrame(Channel& channel, ReceivedFrame frame) {
  CacheLink* link = links_.Find(channel);
  if (link == nullptr) return;
  const wire::FrameHeader& header = frame.header();
  switch (header.type) {
    case wire::FrameType::kDelta:
      if (header.phase == wire::Phase::kPrefetch) break;  // of one sequence, outside of plans
      if (absl::Status status = decode_step_.OnDelta(*link, frame); !status.ok()) DistrustLink(*link, status);
      return;
    case wire::FrameType::kPartial:
      if (absl::Status status = decode_step_.OnPartial(*link, frame); !status.ok()) DistrustLink(*link, status);
      return;
    case wire::FrameType::kWatermark:
      OnWatermarks(*link, frame);
      return;
    case wire::FrameType::kLandingFree:
      if (!link->landings().SetFree(header.plan)) {
        DistrustLink(*link, absl::InvalidArgumentError(absl::StrCat("push ", header.plan, " was not under way")));
      }
      return;
    default:
      break;
  }
  Sequence* sequence = scheduler_.Find([&](const Sequence& candidate) {
    return candidate.sequence_id == header.sequence_id && (candidate.link == nullptr || candidate.link.get() == link);
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
    case wire::FrameType::kRefillDone:
      if (sequence->state == State::kOpening) {
        sequence->early_refill.push_back(std::move(frame));
      } else if (header.attach_epoch == sequence->attach_epoch) {
        TakeRefill(*sequence, header, frame.payload());
      } else {
        ++metrics_.stale_frames;
      }
      return;
    case wire::FrameType::kSeated:
      OnSeated(*sequence, header);
      return;
    case wire::FrameType::kFenced: {
      if (sequence->state == State::kHandedOver) return ForgetHandedOver(header.sequence_id);
      ++metrics_.fenced_sequences;
      const bool taken_over = header.attach_epoch > sequence->attach_epoch;
      sequence->Fail(absl::AbortedError(taken_over ? "another rank has attached to the sequence"
                                                   : "the cache rank lost the sequence"),
                     /*can_retry=*/!taken_over, /*lost=*/!taken_over);
      return;
    }
    case wire::FrameType::kTransferFailed:
      sequence->Fail(absl::UnavailableError("the cache rank could not send rows"), true);
      return;
    default:
      DistrustLink(*link, absl::InvalidArgumentError(absl::StrCat("frame type ", static_cast<int>(header.type))));
  }
}

void Engine::OnPrefetch(CacheLink& link, Sequence& sequence, const ReceivedFrame& frame) {
  // Of another attachment: the pool that it was meant for is gone.
  if (sequence.state != State::kDecoding || frame.header().attach_epoch != sequence.attach_epoch) {
    ++metrics_.stale_frames;
    return;
  }
  const absl::StatusOr<uint32_t> rows = CommitPrefetch(layout_, frame, *sequence.working_set);
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
      return candidate.sequence_id == entries[i].sequence_id && candidate.attach_epoch == entries[i].attach_epoch;
    });
    if (sequence == nullptr) continue;
    sequence->watermark = std::max(sequence->watermark, entries[i].watermark);
    if (sequence->state == State::kDecoding) {
      sequence->working_set_bytes = entries[i].working_set_rows * layout_.row_bytes();
    }
    HandOverIfStored(*sequence);
  }
}

void Engine::TakeRefill(Sequence& sequence, const wire::FrameHeader& header, std::span<const std::byte> payload) {
  if (sequence.state == State::kRefilling) return OnRefill(sequence, header, payload);
  if (sequence.state == State::kLoadingPrefix) return OnPrefix(sequence, header, payload);
  ++metrics_.stale_frames;
}

void Engine::OnPrefix(Sequence& sequence, const wire::FrameHeader& header, std::span<const std::byte> payload) {
  if (header.type == wire::FrameType::kRefillDone) {
    sequence.state = State::kPrefilling;
    return;
  }
  const size_t row_bytes = layout_.row_bytes();
  const size_t head_bytes = header.row_count * row_bytes;
  const bool is_wanted = !sequence.arena->by_layer() || header.layer_first == sequence.arena->layer;
  const bool fits = header.layer_first < layout_.num_layers && is_wanted &&
                    uint64_t{header.apply_position} + header.row_count <= sequence.cached_tokens &&
                    payload.size() == layout_.num_kv_heads * head_bytes;
  if (!fits) {
    DistrustLink(*sequence.link, absl::InvalidArgumentError(absl::StrCat("prefix rows of ", payload.size(), " bytes")));
    return;
  }
  PrefillArena& arena = *sequence.arena;
  for (int head = 0; head < layout_.num_kv_heads; ++head) {
    const std::byte* rows = payload.data() + head * head_bytes;
    std::byte* to = arena.row(header.layer_first, head, header.apply_position);
    if (!arena.on_device()) {
      std::memcpy(to, rows, head_bytes);
      continue;
    }
    for (size_t at = 0; at < head_bytes; at += row_bytes) slots_.WriteBeside(to + at, rows + at);
  }
}

void Engine::OnRefill(Sequence& sequence, const wire::FrameHeader& header, std::span<const std::byte> payload) {
  if (header.type == wire::FrameType::kRefillDone) {
    BecomeDecoding(sequence, sequence.next_position);
    // Everything known may have been computed already: then the next token comes from recomputing the last known
    // position, which max_restart_position made sure of.
    WINNOW_CHECK(sequence.next_position < sequence.known_tokens());
    return;
  }
  const size_t head_bytes = header.row_count * layout_.row_bytes();
  if (header.layer_first >= layout_.num_layers || payload.size() != layout_.num_kv_heads * head_bytes) {
    DistrustLink(*sequence.link, absl::InvalidArgumentError(absl::StrCat("refill of ", payload.size(), " bytes")));
    return;
  }
  for (int head = 0; head < layout_.num_kv_heads; ++head) {
    sequence.working_set->LoadRows(header.layer_first, head, header.apply_position, header.row_count,
                                   payload.data() + head * head_bytes, sequence.next_position);
  }
}

}  // namespace winnow
