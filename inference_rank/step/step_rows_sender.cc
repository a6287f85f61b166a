#include "inference_rank/step/step_rows_sender.h"

#include <algorithm>
#include <cstring>

#include "transport/wire/wire.h"

namespace winnow {
namespace {

size_t RowBytes(const KvLayout& layout, const KvShard& shard) {
  return shard.num_lists() * layout.row_bytes();
}

size_t FrameBytes(size_t num_rows, size_t bytes_of_rows) {
  return wire::AlignUp(num_rows * sizeof(wire::StepRowEntry), wire::kRowAlignment) + bytes_of_rows;
}

}  // namespace

bool StepRowsSender::FitsFrame(const KvLayout& layout) {
  return FrameBytes(1, RowBytes(layout, WholeModel(layout))) <= wire::kMaxPayloadBytes;
}

void StepRowsSender::Send(std::span<const Row> rows) {
  links_.clear();
  for (const Row& row : rows) {
    for (const ShardLink& shard : row.sequence->shards) {
      if (std::find(links_.begin(), links_.end(), shard.link.get()) == links_.end()) {
        links_.push_back(shard.link.get());
      }
    }
  }
  for (CacheLink* link : links_) {
    of_link_.clear();
    for (const Row& row : rows) {
      if (row.sequence->FindShard(*link) != nullptr) of_link_.push_back(&row);
    }
    const absl::Status sent =
        link->alive() ? SendTo(*link, of_link_) : absl::UnavailableError("the cache rank is gone");
    if (sent.ok()) continue;
    for (const Row* row : of_link_) row->sequence->Fail(sent, /*can_retry=*/true);
  }
  transport_.Progress();
}

absl::Status StepRowsSender::SendTo(CacheLink& link, std::span<const Row* const> rows) {
  const auto shard_of = [&](const Row* row) -> const ShardLink& { return *row->sequence->FindShard(link); };
  for (size_t first = 0, end = 0; first < rows.size(); first = end) {
    size_t bytes = 0;
    while (end < rows.size()) {
      const size_t more = bytes + RowBytes(layout_, shard_of(rows[end]).shard);
      if (end > first && FrameBytes(end + 1 - first, more) > wire::kMaxPayloadBytes) break;
      bytes = more;
      ++end;
    }
    const size_t count = end - first;
    WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, AwaitSendBuffer(transport_, link, FrameBytes(count, bytes), waits_));
    auto* const entries = reinterpret_cast<wire::StepRowEntry*>(buffer.payload().data());
    std::byte* to = buffer.payload().data() + FrameBytes(count, 0);
    for (size_t i = 0; i < count; ++i) {
      const Row& row = *rows[first + i];
      const ShardLink& of = shard_of(&row);
      entries[i] = {.sequence_id = row.sequence->sequence_id,
                    .attach_epoch = of.attach_epoch,
                    .position = row.position,
                    .token_id = row.token_id,
                    .first_kv_head = static_cast<uint16_t>(of.shard.first_kv_head),
                    .num_kv_heads = static_cast<uint16_t>(of.shard.num_kv_heads),
                    .first_layer = static_cast<uint16_t>(of.shard.first_layer),
                    .num_layers = static_cast<uint16_t>(of.shard.num_layers),
                    .reserved = 0};
      CopyRows(row, of.shard, to);
      to += RowBytes(layout_, of.shard);
    }
    wire::FrameHeader header{};
    header.type = wire::FrameType::kStepRows;
    header.row_count = static_cast<uint32_t>(count);
    WINNOW_RETURN_IF_ERROR(link.channel()->Post(header, std::move(buffer)));
  }
  return absl::OkStatus();
}

// Heads of a layer lie side by side, and layers, too, where the shard has all heads.
void StepRowsSender::CopyRows(const Row& row, const KvShard& shard, std::byte* to) const {
  const size_t row_bytes = layout_.row_bytes();
  const bool has_all_heads = shard.num_kv_heads == layout_.num_kv_heads;
  const size_t piece = (has_all_heads ? shard.num_lists() : static_cast<size_t>(shard.num_kv_heads)) * row_bytes;
  for (int layer = shard.first_layer; layer <= shard.last_layer(); ++layer, to += piece) {
    std::memcpy(to, row.kv_rows + layout_.list(layer, shard.first_kv_head) * row_bytes, piece);
    if (has_all_heads) return;
  }
}

}  // namespace winnow
