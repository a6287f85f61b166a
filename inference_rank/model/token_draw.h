#pragma once
#include <cstdint>

namespace winnow {

// All that choosing a token takes besides the logits, where neither history nor the client changes or
// forbids any: as Sampler
// does it (sampler.h), a pure function of the two. Temperature 0 takes the largest logit.
struct TokenDraw {
  float temperature = 0;
  float top_p = 1;     // 1: off
  uint32_t top_k = 0;  // 0: off
  float min_p = 0;     // 0: off
  uint64_t seed = 0;
  uint32_t sample_index = 0;
  uint32_t token_index = 0;
};

}  // namespace winnow
