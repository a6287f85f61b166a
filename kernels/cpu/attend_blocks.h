#pragma once
#include "kernels/cpu/decode_attention.h"

namespace winnow {

// Attention over rows in blocks with the tiles of decode attention, on the calling thread.
void RunAttendBlocks(const AttendBlocksParams& params, DecodeTileFunction tile);

}  // namespace winnow
