#include "inference_rank/step/state_sender.h"

#include <algorithm>
#include <cstring>

namespace winnow {

void StateSender::Send(Sequence& sequence) {
  if (!sequence.has_state() || sequence.sent_state_position == sequence.next_position) return;
  if (!sequence.failure.ok()) return;
  if (const absl::Status sent = SendPieces(sequence); !sent.ok()) return sequence.Fail(sent, /*can_retry=*/true);
  sequence.sent_state_position = sequence.next_position;
  ++metrics_.state_snapshots;
  metrics_.state_snapshot_bytes += sequence.state_bytes();
}

absl::Status StateSender::SendPieces(const Sequence& sequence) {
  const ShardLink& shard = sequence.shards.front();
  const auto* const state = reinterpret_cast<const std::byte*>(sequence.recurrent_state.data());
  const size_t bytes = sequence.state_bytes();
  for (size_t offset = 0; offset < bytes;) {
    const size_t piece = std::min(bytes - offset, wire::kMaxPayloadBytes);
    WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, AwaitSendBuffer(transport_, *shard.link, piece, waits_));
    std::memcpy(buffer.payload().data(), state + offset, piece);
    wire::FrameHeader header{};
    header.type = wire::FrameType::kState;
    header.plan = offset;
    header.sequence_id = sequence.sequence_id;
    header.attach_epoch = shard.attach_epoch;
    header.apply_position = sequence.next_position;
    WINNOW_RETURN_IF_ERROR(shard.link->channel()->Post(header, std::move(buffer)));
    offset += piece;
  }
  transport_.Progress();
  return absl::OkStatus();
}

}  // namespace winnow
