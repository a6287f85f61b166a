#include "inference_rank/step/prompt_sender.h"

#include <algorithm>
#include <cstring>

namespace winnow {

uint32_t PromptQueries(const SelectionSpec& spec) {
  if (IsDense(spec)) return 0;
  if (spec.predictor == Predictor::kTemporal || spec.prefetch == Prefetch::kTemporal) return spec.window + 1;
  return spec.predictor == Predictor::kLast ? 1 : 0;
}

HostRows RowsOfArena(const KvLayout& layout, const PrefillArena& arena, int layer, uint32_t first) {
  return {.first = arena.row(layer, 0, first), .head_stride = arena.prompt_tokens() * layout.row_bytes()};
}

HostRows RowsByHead(const KvLayout& layout, const std::byte* kv_rows, uint32_t count) {
  return {.first = kv_rows, .head_stride = count * layout.row_bytes()};
}

absl::StatusOr<SendBuffer> PromptSender::AwaitBuffer(CacheLink& link, int layer, size_t bytes) {
  const TimelineSpan span(metrics_.timeline, Span::kAwaitRoom, static_cast<uint16_t>(layer), 0, 1);
  return AwaitSendBuffer(transport_, link, bytes, waits_);
}

absl::Status PromptSender::SendRows(const Sequence& sequence, const HostRows& rows, int layer, uint32_t first,
                                    uint32_t count) {
  for (const ShardLink& shard : sequence.shards) {
    if (!shard.shard.HasLayer(layer)) continue;
    WINNOW_RETURN_IF_ERROR(SendRowsOf(shard, sequence.sequence_id, rows, layer, first, count));
  }
  transport_.Progress();
  return absl::OkStatus();
}

absl::Status PromptSender::SendRowsOf(const ShardLink& shard, uint64_t sequence_id, const HostRows& rows, int layer,
                                      uint32_t first, uint32_t count) {
  const size_t row_bytes = layout_.row_bytes();
  const int num_heads = shard.shard.num_kv_heads;
  const uint32_t most = static_cast<uint32_t>(wire::kMaxPayloadBytes / (num_heads * row_bytes));
  for (uint32_t done = 0; done < count;) {
    const uint32_t num_rows = std::min(most, count - done);
    const size_t head_bytes = num_rows * row_bytes;
    WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, AwaitBuffer(*shard.link, layer, num_heads * head_bytes));
    for (int head = 0; head < num_heads; ++head) {
      std::memcpy(buffer.payload().data() + head * head_bytes,
                  rows.first + (shard.shard.first_kv_head + head) * rows.head_stride + done * row_bytes, head_bytes);
    }
    wire::FrameHeader header{};
    header.type = wire::FrameType::kAppendRange;
    header.sequence_id = sequence_id;
    header.attach_epoch = shard.attach_epoch;
    header.apply_position = first + done;
    header.layer_first = static_cast<uint16_t>(layer);
    header.row_count = num_rows;
    WINNOW_RETURN_IF_ERROR(shard.link->channel()->Post(header, std::move(buffer)));
    done += num_rows;
  }
  return absl::OkStatus();
}

absl::StatusOr<PromptSender::StagingPlace> PromptSender::AwaitStagingPlace(const Sequence& sequence, int layer,
                                                                           uint32_t count) {
  if (sequence.shards.size() != 1) return StagingPlace();  // a peer link takes rows of the whole model
  CacheLink& link = *sequence.shards.front().link;
  const PeerStepLink* const peer_link = link.peer_link();
  if (peer_link == nullptr || count > peer_link->staging_tokens()) return StagingPlace();
  const TimelineSpan span(metrics_.timeline, Span::kAwaitRoom, static_cast<uint16_t>(layer), 0, 1);
  const auto give_up = std::chrono::steady_clock::now() + waits_.timeout;
  while (true) {
    WINNOW_RETURN_IF_ERROR(link.channel()->failed());
    if (!link.alive()) return absl::UnavailableError(absl::StrCat("cache rank ", link.peer().rank(), " is gone"));
    const std::optional<uint64_t> push = link.staging_places().Take(peer_link->staging_places());
    if (push.has_value()) return StagingPlace{*push, peer_link->StagingPlace(*push)};
    if (std::chrono::steady_clock::now() > give_up) {
      return absl::DeadlineExceededError(absl::StrCat("cache rank ", link.peer().rank(), " takes no rows"));
    }
    link.MarkAwaited();
    transport_.Wait(std::chrono::milliseconds(1), waits_.spin);
  }
}

absl::Status PromptSender::SendStaged(const Sequence& sequence, uint64_t push, int layer, uint32_t first,
                                      uint32_t count) {
  const ShardLink& shard = sequence.shards.front();
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, AwaitBuffer(*shard.link, layer, 0));
  wire::FrameHeader header{};
  header.type = wire::FrameType::kStaged;
  header.plan = push;
  header.sequence_id = sequence.sequence_id;
  header.attach_epoch = shard.attach_epoch;
  header.apply_position = first;
  header.layer_first = static_cast<uint16_t>(layer);
  header.row_count = count;
  WINNOW_RETURN_IF_ERROR(shard.link->channel()->Post(header, std::move(buffer)));
  metrics_.pushed_prompt_rows += uint64_t{count} * layout_.num_kv_heads;
  transport_.Progress();
  return absl::OkStatus();
}

absl::Status PromptSender::SendQueries(const Sequence& sequence, int layer, uint32_t first, uint32_t count,
                                       const float* q_pre_rope) {
  const uint32_t wanted = std::min(PromptQueries(sequence.spec), sequence.prompt_tokens());
  const uint32_t from = std::max(sequence.prompt_tokens() - wanted, first);
  const uint32_t end = first + count;
  if (wanted == 0 || from >= end) return absl::OkStatus();
  const size_t head_dim = layout_.head_dim, token_floats = layout_.num_query_heads * head_dim;
  for (const ShardLink& shard : sequence.shards) {
    if (!shard.shard.HasLayer(layer)) continue;
    const size_t first_float = static_cast<size_t>(shard.shard.first_kv_head) * layout_.group_size() * head_dim;
    const size_t shard_floats = static_cast<size_t>(shard.shard.num_kv_heads) * layout_.group_size() * head_dim;
    const size_t bytes = (end - from) * shard_floats * sizeof(float);
    WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, AwaitBuffer(*shard.link, layer, bytes));
    for (uint32_t i = 0; i < end - from; ++i) {
      std::memcpy(buffer.payload().data() + i * shard_floats * sizeof(float),
                  q_pre_rope + (from - first + i) * token_floats + first_float, shard_floats * sizeof(float));
    }
    wire::FrameHeader header{};
    header.type = wire::FrameType::kPromptQueries;
    header.sequence_id = sequence.sequence_id;
    header.attach_epoch = shard.attach_epoch;
    header.apply_position = from;
    header.layer_first = static_cast<uint16_t>(layer);
    header.row_count = end - from;
    WINNOW_RETURN_IF_ERROR(shard.link->channel()->Post(header, std::move(buffer)));
  }
  return absl::OkStatus();
}

void LoadPromptLayer(const KvLayout& layout, const PrefillArena& arena, int layer, Sequence& sequence) {
  const uint32_t prompt = sequence.prompt_tokens();
  WorkingSet& set = *sequence.working_set;
  if (set.is_by_position() && arena.on_device()) return set.CopyPrompt(layer, prompt, arena);
  const uint32_t sinks = std::min(sequence.spec.sink_tokens, prompt);
  const auto rows_in = arena.on_device() ? WorkingSet::RowsIn::kSlotMemory : WorkingSet::RowsIn::kHost;
  const uint32_t ring = std::max(sinks, prompt > set.ring_tokens() ? prompt - set.ring_tokens() : 0);
  for (int head = 0; head < layout.num_kv_heads; ++head) {
    const bool all = set.is_by_position() || set.AttendsEverything(layout.list(layer, head), prompt - 1);
    const uint32_t tail = all ? sinks : ring;
    set.LoadRows(layer, head, 0, sinks, arena.row(layer, head, 0), prompt, rows_in);
    set.LoadRows(layer, head, tail, prompt - tail, arena.row(layer, head, tail), prompt, rows_in);
  }
}

void LoadPrompt(const KvLayout& layout, const PrefillArena& arena, Sequence& sequence) {
  for (int layer = 0; layer < layout.num_layers; ++layer) LoadPromptLayer(layout, arena, layer, sequence);
  sequence.working_set->FinishLoad(sequence.prompt_tokens());
}

}  // namespace winnow
