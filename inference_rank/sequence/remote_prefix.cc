#include "inference_rank/sequence/remote_prefix.h"

#include <algorithm>
#include <cstring>

#include "kernels/params/attention.h"

namespace winnow {

size_t RemotePrefix::state_floats() const {
  return static_cast<size_t>(layout_.num_query_heads) * PrefillStateFloats(layout_.head_dim);
}

void RemotePrefix::BeginWave(int layer, uint32_t first, uint32_t end, uint32_t prompt_tokens) {
  layer_ = layer;
  wave_first_ = begun_end_ = first;
  wave_end_ = end;
  const bool last_layer = layer + 1 == layout_.num_layers;
  asked_from_ = sent_end_ = last_layer ? std::clamp(prompt_tokens - 1, first, end) : first;
  sent_.clear();
  queries_.resize((end - first) * query_floats());
  states_.resize((end - first) * state_floats());
}

uint32_t RemotePrefix::ready_end() const {
  uint32_t ready = asked_from_;
  for (const Sent& sent : sent_) {
    if (sent.due > 0) break;
    ready = sent.frame.first + sent.frame.count;
  }
  return std::min(ready, begun_end_);
}

float* RemotePrefix::queries(uint32_t position) {
  return queries_.data() + (position - wave_first_) * query_floats();
}

const float* RemotePrefix::states(uint32_t position) const {
  return states_.data() + (position - wave_first_) * state_floats();
}

RemotePrefix::Frame RemotePrefix::NextFrame(std::span<const ShardLink> shards) {
  const auto under_way = std::count_if(sent_.begin(), sent_.end(), [](const Sent& sent) { return sent.due > 0; });
  if (begun_end_ <= sent_end_ || under_way >= static_cast<int64_t>(wire::kMaxPrefixFrames)) return {};
  const uint32_t most = wire::MaxPrefixQueries(layout_.num_query_heads, layout_.head_dim);
  const Frame frame{sent_end_, std::min(most, begun_end_ - sent_end_)};
  if (frame.count < most && !all_begun()) return {};
  Sent sent{.frame = frame, .answered = std::vector<bool>(shards.size())};
  for (const ShardLink& shard : shards) sent.due += shard.shard.HasLayer(layer_);
  sent_.push_back(std::move(sent));
  sent_end_ += frame.count;
  return frame;
}

size_t RemotePrefix::PayloadBytes(const Frame& frame, const KvShard& shard) const {
  return static_cast<size_t>(frame.count) * shard.num_kv_heads * layout_.group_size() * layout_.head_dim *
         sizeof(float);
}

void RemotePrefix::WritePayload(const Frame& frame, const KvShard& shard, std::byte* payload) const {
  const size_t bytes = PayloadBytes({0, 1}, shard);
  const size_t skipped = static_cast<size_t>(shard.first_kv_head) * layout_.group_size() * layout_.head_dim;
  for (uint32_t i = 0; i < frame.count; ++i) {
    std::memcpy(payload + i * bytes, queries(frame.first + i) + skipped, bytes);
  }
}

wire::FrameHeader RemotePrefix::HeaderOf(const Frame& frame) const {
  wire::FrameHeader header{};
  header.type = wire::FrameType::kPrefixQueries;
  header.flags = choice_.end_key;
  header.apply_position = frame.first;
  header.layer_first = static_cast<uint16_t>(layer_);
  header.row_count = frame.count;
  return header;
}

absl::Status RemotePrefix::Take(std::span<const ShardLink> shards, size_t shard_index, const ReceivedFrame& received) {
  const wire::FrameHeader& header = received.header();
  const KvShard& shard = shards[shard_index].shard;
  const auto sent = std::find_if(sent_.begin(), sent_.end(), [&](const Sent& entry) {
    return entry.frame.first == header.apply_position && entry.frame.count == header.row_count;
  });
  const size_t head_floats = PrefillStateFloats(layout_.head_dim);
  const size_t floats = static_cast<size_t>(shard.num_kv_heads) * layout_.group_size() * head_floats;
  const bool asked = in_wave() && sent != sent_.end() && header.layer_first == layer_ && shard.HasLayer(layer_) &&
                     header.flags == choice_.end_key && !sent->answered[shard_index] &&
                     received.payload().size() == header.row_count * floats * sizeof(float);
  if (!asked) {
    return absl::InvalidArgumentError(absl::StrCat(header.row_count, " states of layer ", header.layer_first,
                                                   " from position ", header.apply_position,
                                                   " on, for which nobody has asked"));
  }
  const size_t skipped = static_cast<size_t>(shard.first_kv_head) * layout_.group_size() * head_floats;
  for (uint32_t i = 0; i < header.row_count; ++i) {
    float* to = states_.data() + (header.apply_position + i - wave_first_) * state_floats() + skipped;
    std::memcpy(to, received.payload().data() + i * floats * sizeof(float), floats * sizeof(float));
  }
  sent->answered[shard_index] = true;
  --sent->due;
  return absl::OkStatus();
}

}  // namespace winnow
