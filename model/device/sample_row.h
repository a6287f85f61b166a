#pragma once
#include "kernels/device/params/elementwise.h"
#include "model/token_draw.h"

namespace winnow {

inline device::SampleRow SampleRowOf(const TokenDraw& draw) {
  return {.temperature = draw.temperature,
          .top_p = draw.top_p,
          .top_k = draw.top_k,
          .min_p = draw.min_p,
          .sample_index = draw.sample_index,
          .token_index = draw.token_index,
          .seed = draw.seed};
}

// For a step that draws, whose beginning adds one to the token's index.
inline device::SampleRow SampleRowBeforeStep(const TokenDraw& draw) {
  device::SampleRow row = SampleRowOf(draw);
  --row.token_index;
  return row;
}

}  // namespace winnow
