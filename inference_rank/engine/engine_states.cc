// What sequences of hybrid models keep in the place of rows: when the cache rank gets it, and how it comes back.
#include <cstring>

#include "inference_rank/engine/engine.h"

namespace winnow {

void Engine::TakeState(Sequence& sequence) {
  sequence.recurrent_state.assign(options_.state_floats, 0.0f);
  sequence.loaded_state_bytes = 0;
}

void Engine::SendStateOfStep(Sequence& sequence) {
  if (!sequence.has_state() || sequence.cancelled) return;
  // Sequences of one batch take turns: a state may be as large as what a step reads.
  if ((sequence.next_position + sequence.sequence_id) % kStateSnapshotTokens == 0) state_sender_.Send(sequence);
}

void Engine::SendStateOfChunk(Sequence& sequence) {
  const bool is_end = sequence.next_position == sequence.prompt_tokens();
  if (is_end || sequence.next_position % kBlockTokens == 0) state_sender_.Send(sequence);
}

bool Engine::StateIsStored(Sequence& sequence) {
  if (!sequence.has_state()) return true;  // what the cache rank has is all that there is
  state_sender_.Send(sequence);
  return sequence.stored_state_position == sequence.next_position;
}

void Engine::LoadState(Sequence& sequence, const ShardLink& shard, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  const size_t bytes = frame.payload().size();
  const bool follows = header.plan == sequence.loaded_state_bytes && bytes > 0 &&
                       bytes <= sequence.state_bytes() - sequence.loaded_state_bytes &&
                       header.apply_position == sequence.sent_state_position;
  if (!follows) {
    return DistrustLink(
        *shard.link, absl::InvalidArgumentError(absl::StrCat(
                         "bytes ", header.plan, " + ", bytes, " of a state of ", sequence.state_bytes(),
                         " at position ", header.apply_position, " behind ", sequence.loaded_state_bytes, " of it")));
  }
  std::memcpy(reinterpret_cast<std::byte*>(sequence.recurrent_state.data()) + header.plan, frame.payload().data(),
              bytes);
  sequence.loaded_state_bytes += bytes;
}

bool Engine::LacksState(const Sequence& sequence) const {
  return sequence.has_state() && sequence.loaded_state_bytes < sequence.state_bytes();
}

}  // namespace winnow
