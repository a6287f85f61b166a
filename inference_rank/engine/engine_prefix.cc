// Prompts whose attention to a cached prefix is done by the cache ranks.
#include <algorithm>

#include "common/base/check.h"
#include "inference_rank/engine/engine.h"

namespace winnow {
namespace {

using State = Sequence::State;

}  // namespace

PrefixCase Engine::PrefixCaseOf(const Sequence& sequence) const {
  PrefixCase prefix{.layout = layout_,
                    .prompt_tokens = sequence.prompt_tokens(),
                    .cached_tokens = sequence.stored_tokens,
                    .decodes_here = sequence.working_set.has_value(),
                    .sink_tokens = sequence.spec.sink_tokens};
  prefix.can_be_remote = forward_.CutsLayersAtAttention() &&
                         std::all_of(sequence.shards.begin(), sequence.shards.end(), [&](const ShardLink& shard) {
                           return shard.link->kernel_set() == options_.kernel_set;
                         });
  if (sequence.working_set.has_value()) {
    const WorkingSet& set = *sequence.working_set;
    prefix.ring_tokens = set.ring_tokens();
    prefix.keeps_all_rows = set.is_by_position();
    for (size_t list = 0; list < set.num_lists(); ++list) {
      prefix.keeps_all_rows |= set.AttendsEverything(list, sequence.prompt_tokens() - 1);
    }
  }
  std::vector<PrefixShard> shards;
  for (const ShardLink& shard : sequence.shards) {
    const double share = static_cast<double>(shard.shard.num_kv_heads) / layout_.num_kv_heads;
    shards.push_back({.share = share, .threads = shard.link->num_threads()});
  }
  prefix.us_per_byte = prefix_times_.us_per_byte();
  prefix.us_per_position = prefix_times_.us_per_work() * options_.prefill_work.per_earlier_token;
  prefix.remote_slowness = RemoteSlowness(options_.num_threads, shards);
  return prefix;
}

void Engine::ChoosePrefixWay(Sequence& sequence) {
  const PrefixChoice choice = ChoosePrefixAttention(options_.prefix_attention, PrefixCaseOf(sequence));
  if (choice.is_remote()) prefix_times_.NoteRemote();
  ++(choice.is_remote() ? metrics_.remote_prefix_prompts : metrics_.stream_back_prompts);
  if (choice.is_remote()) sequence.remote_prefix.emplace(layout_, choice);
}

uint32_t Engine::RunRemotePiece(Sequence& sequence, uint32_t most) {
  RemotePrefix& remote = *sequence.remote_prefix;
  PrefillArena& arena = *sequence.arena;
  const uint32_t prompt = sequence.prompt_tokens();
  if (!arena.by_layer() && !arena.in_chunk()) BeginChunk(sequence);
  if (!remote.in_wave()) {
    const uint32_t most_of_wave = arena.layer_position + options_.limits.prefill_chunk_tokens;
    remote.BeginWave(arena.layer, arena.layer_position, std::min(LayerEnd(sequence), most_of_wave), prompt);
  }
  SendPrefixQueries(sequence);  // as many as answers have made room for
  const int layer = arena.layer;
  const TimelineSpan span(metrics_.timeline, Span::kPrefillChunk, static_cast<uint16_t>(layer), 0, 1);
  const bool first_half = !remote.all_begun();
  const uint32_t first = first_half ? remote.begun_end() : arena.layer_position;
  const uint32_t end = first_half ? remote.wave_end() : remote.ready_end();
  WINNOW_CHECK(first < end);
  const bool last = first + 1 == prompt;
  const uint32_t count = last ? 1 : std::min(most, std::min(end, prompt - 1) - first);
  const std::vector<float*> residuals = ResidualsOf(sequence, first);
  float* const hidden = residuals.front();
  PrefillStep& step = BeginPrefillStep(sequence, first, count);
  if (first_half) {
    if (layer == 0) forward_.EmbedPrompt({sequence.prompt.data() + first, count}, residuals);
    forward_.ProjectPrompt(layer, first, static_cast<int>(count), last, hidden, step, remote.queries(first));
    remote.SetBegun(first + count);
    SendPrefixQueries(sequence);
    UpdatePrefixState(sequence);
    return count;
  }
  forward_.AttendPrompt(layer, first, static_cast<int>(count), last,
                        {.queries = remote.queries(first),
                         .rows = step.RowsOf(layer, 0),
                         .first_key = remote.end_key(),
                         .state = remote.states(first)},
                        hidden);
  if (first + count == remote.wave_end()) remote.EndWave();
  EndPiece(sequence, count);
  if (sequence.remote_prefix.has_value()) UpdatePrefixState(sequence);
  return count;
}

void Engine::SendPrefixQueries(Sequence& sequence) {
  RemotePrefix& remote = *sequence.remote_prefix;
  while (sequence.failure.ok()) {
    const RemotePrefix::Frame frame = remote.NextFrame(sequence.shards);
    if (frame.count == 0) return;
    wire::FrameHeader header = remote.HeaderOf(frame);
    header.sequence_id = sequence.sequence_id;
    for (const ShardLink& shard : sequence.shards) {
      if (!shard.shard.HasLayer(remote.layer())) continue;
      const size_t bytes = remote.PayloadBytes(frame, shard.shard);
      absl::StatusOr<SendBuffer> buffer = AwaitSendBuffer(*transport_, *shard.link, bytes, options_.waits);
      absl::Status posted = buffer.status();
      if (posted.ok()) {
        remote.WritePayload(frame, shard.shard, buffer->payload().data());
        header.attach_epoch = shard.attach_epoch;
        posted = shard.link->channel()->Post(header, *std::move(buffer));
      }
      if (!posted.ok()) return sequence.Fail(posted, /*can_retry=*/true);
      metrics_.remote_prefix_bytes += bytes;
    }
    transport_->Progress();
  }
}

void Engine::TakePrefixStates(Sequence& sequence, const ShardLink& shard, const ReceivedFrame& frame) {
  if (!sequence.remote_prefix.has_value() || frame.header().attach_epoch != shard.attach_epoch) {
    ++metrics_.stale_frames;
    return;
  }
  const size_t index = static_cast<size_t>(&shard - sequence.shards.data());
  if (absl::Status taken = sequence.remote_prefix->Take(sequence.shards, index, frame); !taken.ok()) {
    return DistrustLink(*shard.link, taken);
  }
  metrics_.remote_prefix_bytes += frame.payload().size();
  UpdatePrefixState(sequence);
}

void Engine::UpdatePrefixState(Sequence& sequence) {
  const RemotePrefix& remote = *sequence.remote_prefix;
  const bool begins = !remote.in_wave() || !remote.all_begun();
  const bool goes_on =
      sequence.refills_due == 0 && remote.in_wave() && remote.ready_end() > sequence.arena->layer_position;
  sequence.state = begins || goes_on ? State::kPrefilling : State::kLoadingPrefix;
}

}  // namespace winnow
