#pragma once
#include <array>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "inference_rank/metrics.h"
#include "inference_rank/sequence/sequence.h"
#include "inference_rank/step/prompt_sender.h"
#include "model/forward.h"
#include "transport/transport.h"

namespace winnow {

// The KV side of prefill chunks: keeps the prompt's rows in the sequence's arena and sends them to its cache rank layer
// by layer: in frames or, where the link has a peer link, pushed from GPU to GPU. A failure sets Sequence::failure; the
// chunk still runs to its end. Engine thread.
class PrefillStep final : public PrefillKv {
 public:
  PrefillStep(Transport& transport, const KvLayout& layout, InferenceRankMetrics& metrics, const DataPlaneWaits& waits)
      : layout_(layout), metrics_(metrics), sender_(transport, layout, metrics, waits) {}

  // Starts a chunk of `count` tokens from `first` on.
  void Begin(Sequence& sequence, uint32_t first, uint32_t count);
  Rows Destination(int layer, int first_kv_head) override;
  void* PushTo(int layer) override;
  int QueriesWanted(int num_tokens) const override;
  Rows Publish(int layer, const std::byte* kv_rows, const float* q_pre_rope) override;
  float* State() const override { return sequence_->recurrent_state.data(); }
  // What Publish returns, of kv heads from `first_kv_head` on.
  Rows RowsOf(int layer, int first_kv_head) const;

 private:
  // Of a layer, where the sequence looks back in place.
  void KeepQueries(int layer, const float* q_pre_rope);

  const KvLayout layout_;
  InferenceRankMetrics& metrics_;
  PromptSender sender_;
  Sequence* sequence_ = nullptr;
  uint32_t first_ = 0;
  uint32_t count_ = 0;
  std::array<uint64_t, 2> pushes_{};  // of the layers that are under way, by number in turn; 0: it goes in frames
};

}  // namespace winnow
