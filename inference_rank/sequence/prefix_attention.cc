#include "inference_rank/sequence/prefix_attention.h"

#include <algorithm>

#include "kernels/params/attention.h"
#include "transport/wire/wire.h"

namespace winnow {

PrefixChoice ChoosePrefixAttention(PrefixAttention wanted, const PrefixCase& prefix) {
  const KvLayout& layout = prefix.layout;
  PrefixChoice all{.stream_back_bytes = layout.token_bytes() * prefix.cached_tokens, .remote_bytes = UINT64_MAX};
  const uint32_t end_key = prefix.cached_tokens / kPrefillKeyTile * kPrefillKeyTile;
  const bool needs_all = prefix.decodes_here && prefix.keeps_all_rows;
  const bool fits_frames = wire::MaxPrefixQueries(layout.num_query_heads, layout.head_dim) > 0;
  if (!prefix.can_be_remote || needs_all || end_key == 0 || !fits_frames) return all;

  PrefixChoice remote = all;
  remote.end_key = remote.first_row = end_key;
  if (prefix.decodes_here) {
    const uint32_t ring_first = prefix.prompt_tokens - std::min(prefix.prompt_tokens, prefix.ring_tokens);
    remote.first_row = std::min(end_key, ring_first);
    remote.sinks = std::min(prefix.sink_tokens, remote.first_row);
  }
  const uint64_t rows = remote.sinks + prefix.cached_tokens - remote.first_row;
  const uint64_t head_bytes =
      (static_cast<uint64_t>(layout.head_dim) + PrefillStateFloats(layout.head_dim)) * sizeof(float);
  // In the last layer nothing but the prompt's last token is attended for.
  const uint64_t tail = prefix.prompt_tokens - prefix.cached_tokens;
  const uint64_t token_layers = tail * (layout.num_layers - 1) + 1;
  remote.remote_bytes = layout.token_bytes() * rows + token_layers * layout.num_query_heads * head_bytes;
  const auto bytes_us = [&](uint64_t bytes) { return prefix.us_per_byte * static_cast<double>(bytes); };
  const double attention_us = prefix.us_per_position * static_cast<double>(token_layers) * end_key;
  remote.stream_back_us = bytes_us(remote.stream_back_bytes) + attention_us;
  remote.remote_us = bytes_us(remote.remote_bytes) + prefix.remote_slowness * attention_us;
  all.remote_bytes = remote.remote_bytes;
  all.stream_back_us = remote.stream_back_us;
  all.remote_us = remote.remote_us;
  const bool moves_less = remote.remote_bytes < remote.stream_back_bytes;
  const bool is_measured = prefix.us_per_byte > 0 && prefix.us_per_position > 0;
  const bool is_better = is_measured ? remote.remote_us < remote.stream_back_us : moves_less;
  return (wanted == PrefixAttention::kAuto ? is_better : wanted == PrefixAttention::kRemote) ? remote : all;
}

double RemoteSlowness(int own_threads, std::span<const PrefixShard> shards) {
  constexpr double kOverhead = 1.25;
  double slowest = 0;
  for (const PrefixShard& shard : shards) {
    slowest = std::max(slowest, shard.share * own_threads / std::max(shard.threads, 1));
  }
  return kOverhead * slowest;
}

}  // namespace winnow
