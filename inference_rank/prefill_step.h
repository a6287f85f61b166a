#pragma once
#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "common/transport/transport.h"
#include "inference_rank/model/forward.h"
#include "inference_rank/prompt_sender.h"
#include "inference_rank/sequence.h"

namespace winnow {

// The KV side of prefill chunks: keeps the prompt's rows in the sequence's arena and sends them to its cache rank layer
// by layer. A failure sets Sequence::failure; the chunk still runs to its end. Engine thread.
class PrefillStep final : public PrefillKv {
 public:
  PrefillStep(Transport& transport, const KvLayout& layout, const DataPlaneWaits& waits)
      : layout_(layout), sender_(transport, layout, waits) {}

  // Starts a chunk of `count` tokens from `first` on.
  void Begin(Sequence& sequence, uint32_t first, uint32_t count);
  Rows Destination(int layer, int first_kv_head) override;
  int QueriesWanted(int num_tokens) const override;
  Rows Publish(int layer, const std::byte* kv_rows, const float* q_pre_rope) override;

 private:
  Rows RowsOf(int layer, int first_kv_head) const;

  const KvLayout layout_;
  PromptSender sender_;
  Sequence* sequence_ = nullptr;
  uint32_t first_ = 0;
  uint32_t count_ = 0;
};

}  // namespace winnow
