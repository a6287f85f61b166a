#pragma once
#include <span>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "inference_rank/sequence/sequence.h"
#include "inference_rank/step/frame_writer.h"
#include "transport/transport.h"

namespace winnow {

// Sends the K and V of steps that ran without the cache ranks to those that hold the sequences (kStepRows), one step's
// rows of a cache rank together: few frames, each filled by a copy per row. Engine thread.
class StepRowsSender {
 public:
  struct Row {
    Sequence* sequence = nullptr;
    uint32_t position = 0;
    uint32_t token_id = 0;               // its input
    const std::byte* kv_rows = nullptr;  // [num_layers][num_kv_heads] rows of the model's layout
  };

  StepRowsSender(Transport& transport, const KvLayout& layout, const DataPlaneWaits& waits)
      : transport_(transport), layout_(layout), waits_(waits) {}

  // Whether a frame has room for a position of all layers.
  static bool FitsFrame(const KvLayout& layout);

  // Where a cache rank cannot be told, its sequences fail.
  void Send(std::span<const Row> rows);

 private:
  // Rows of one cache rank.
  absl::Status SendTo(CacheLink& link, std::span<const Row* const> rows);
  void CopyRows(const Row& row, const KvShard& shard, std::byte* to) const;

  Transport& transport_;
  const KvLayout layout_;
  const DataPlaneWaits waits_;
  std::vector<CacheLink*> links_;    // of the rows at hand
  std::vector<const Row*> of_link_;  // of those, the ones of one link
};

}  // namespace winnow
