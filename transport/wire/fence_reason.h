#pragma once
#include <cstdint>

namespace winnow::wire {

// FrameHeader::flags of kFenced with attach_epoch 0: the sequence is gone because a stored row of layer_first at
// apply_position is not what was written.
inline constexpr uint32_t kFencedForDamage = 1;

}  // namespace winnow::wire
