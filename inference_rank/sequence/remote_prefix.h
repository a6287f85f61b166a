#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "inference_rank/links/shard_link.h"
#include "inference_rank/sequence/prefix_attention.h"
#include "transport/transport.h"

namespace winnow {

// Of a prompt whose attention to its cached prefix is done by the cache ranks: which queries are there, which have been
// sent, and what has come back. Tokens go through a layer in waves; of a wave first all queries are made, which travel
// in frames as they fill, and attention goes on with the states as they come. Engine thread.
class RemotePrefix {
 public:
  RemotePrefix(const KvLayout& layout, const PrefixChoice& choice) : layout_(layout), choice_(choice) {}

  const PrefixChoice& choice() const { return choice_; }
  uint32_t end_key() const { return choice_.end_key; }

  // Tokens [first, end) of the prompt are to go through the layer. In the last layer only the prompt's last token
  // attends to anything.
  void BeginWave(int layer, uint32_t first, uint32_t end, uint32_t prompt_tokens);
  void EndWave() { wave_end_ = 0; }
  bool in_wave() const { return wave_end_ > 0; }
  int layer() const { return layer_; }
  uint32_t wave_end() const { return wave_end_; }
  // Tokens of the wave below have their queries.
  uint32_t begun_end() const { return begun_end_; }
  bool all_begun() const { return begun_end_ == wave_end_; }
  // And tokens below have their states, too.
  uint32_t ready_end() const;

  // [.., num_query_heads, head_dim] and [.., num_query_heads, PrefillStateFloats] from a token of the wave on.
  float* queries(uint32_t position);
  const float* states(uint32_t position) const;
  // `queries` of the next tokens are there.
  void SetBegun(uint32_t end) { begun_end_ = end; }

  // The next frame to be sent now, marked as sent to those shards that have the layer; count 0: there is none, because
  // it is not full yet or too many are unanswered.
  struct Frame {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  Frame NextFrame(std::span<const ShardLink> shards);
  // Of that frame what the shard is sent: the queries of its heads, [count, heads of the shard, head_dim].
  size_t PayloadBytes(const Frame& frame, const KvShard& shard) const;
  void WritePayload(const Frame& frame, const KvShard& shard, std::byte* payload) const;
  wire::FrameHeader HeaderOf(const Frame& frame) const;  // but for sequence and epoch

  // A kPrefixStates frame of shards[shard]. INVALID_ARGUMENT when it answers nothing that was asked.
  absl::Status Take(std::span<const ShardLink> shards, size_t shard, const ReceivedFrame& frame);

  // The residuals of the chunk under way, where the arena has none.
  std::vector<float> residual;

 private:
  struct Sent {
    Frame frame;
    size_t due = 0;              // shards that have not answered
    std::vector<bool> answered;  // [shards]
  };
  const float* queries(uint32_t position) const { return const_cast<RemotePrefix*>(this)->queries(position); }
  size_t query_floats() const { return static_cast<size_t>(layout_.num_query_heads) * layout_.head_dim; }
  size_t state_floats() const;

  const KvLayout layout_;
  const PrefixChoice choice_;
  int layer_ = 0;
  uint32_t wave_first_ = 0, wave_end_ = 0;
  uint32_t asked_from_ = 0;  // tokens of the wave below attend to nothing
  uint32_t begun_end_ = 0, sent_end_ = 0;
  std::vector<Sent> sent_;  // of the wave, in order
  std::vector<float> queries_, states_;
};

}  // namespace winnow
