#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "cache_rank/select/verify/verify_head.h"
#include "cache_rank/store/residency.h"
#include "transport/wire/wire.h"

namespace winnow {

// One frame, or a part of one, that waits for send window. Sequences are named, not pointed at: an item of a sequence
// that was re-attached or freed meanwhile is dropped when its turn comes.
struct OutgoingItem {
  wire::FrameType type = wire::FrameType::kFenced;
  uint64_t plan = 0;
  uint64_t sequence_id = 0;
  uint32_t attach_epoch = 0;
  uint32_t position = 0;          // apply_position; the watermark of kWatermark
  uint64_t working_set_rows = 0;  // kWatermark
  uint64_t loaded_rows = 0;       // kWatermark
  uint32_t state_position = 0;    // kWatermark
  uint16_t layer = 0;             // of the model, as in frames
  // kDelta, kPartial: the entry of one plan row and kv head of the model.
  uint16_t kv_head = 0;
  uint32_t plan_row = 0;
  bool started = false;  // its first part was posted
  std::unique_ptr<HeadDelta> delta = nullptr;
  std::unique_ptr<HeadPartial> partial = nullptr;
  std::vector<float> states = {};  // kPrefixStates
  // kRefill: rows from `position` on. kDelta: streamed rows. kBatchRowAnswer: the batch row. kPrefixStates: queries.
  uint32_t count = 0;
  uint32_t end_key = 0;     // kPrefixStates
  uint32_t done = 0;        // of them, posted
  uint64_t done_bytes = 0;  // kStateRefill
  bool granted = false;     // kBatchRowAnswer
  bool damaged = false;     // kFenced: of the row at `layer` and `position`

  // What prefill and refills want: it goes out behind the others, and in half of the window.
  bool is_bulk() const {
    return type == wire::FrameType::kRefill || type == wire::FrameType::kRefillDone ||
           type == wire::FrameType::kStateRefill || type == wire::FrameType::kPrefixStates;
  }
};

}  // namespace winnow
