#pragma once
#include <cstdint>
#include <vector>

#include "common/base/kv_layout.h"
#include "model/forward.h"

namespace winnow {

// KV sides that store nothing and send nothing: for a first pass that loads kernels and chooses algorithms before the
// first request. They use the slots at the front of a GPU's, a page for each kv head.
class WarmUpDecode final : public DecodeKv {
 public:
  WarmUpDecode(int num_kv_heads, int group_size, uint32_t slot)
      : num_kv_heads_(num_kv_heads), group_size_(group_size), slots_{slot} {}
  int Lookahead() const override { return 1; }
  void Publish(const DecodeLayerOutput&) override {}
  void AwaitSlots(int, SlotLists& lists) override {
    for (int head = 0; head < num_kv_heads_; ++head) lists.Add(slots_, group_size_);
  }

 private:
  const int num_kv_heads_, group_size_;
  const std::vector<uint32_t> slots_;
};

class WarmUpPrefill final : public PrefillKv {
 public:
  explicit WarmUpPrefill(void* slots) : slots_(slots) {}
  Rows Destination(int, int) override { return {.kv = slots_, .head_stride = kSlotPageTokens}; }
  Rows Publish(int layer, const std::byte*, const float*) override { return Destination(layer, 0); }

 private:
  void* const slots_;
};

}  // namespace winnow
