#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/device/params/all_reduce_terms.h"

// Words of terms (all_reduce_terms.h): who gives one and who takes it.
namespace winnow::device {

// Element `at` of this rank's term.
__device__ inline void StoreTerm(const TermPlaces& places, int64_t at, float value) {
  const float word = __float_as_uint(value) == 0 ? -0.0f : value;
#pragma unroll
  for (int rank = 0; rank < kMaxTerms; ++rank) {
    if (rank >= places.num_ranks) break;
    asm volatile("st.relaxed.sys.global.f32 [%0], %1;" ::"l"(places.of_rank[rank] + at), "f"(word) : "memory");
  }
}

__device__ inline bool HaveCome(const float4& words) {
  return __float_as_uint(words.x) != 0 && __float_as_uint(words.y) != 0 && __float_as_uint(words.z) != 0 &&
         __float_as_uint(words.w) != 0;
}
// Looks again, where `looks`.
__device__ inline void LoadTerm(float4& words, const float4* from, bool looks) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
               : "+f"(words.x), "+f"(words.y), "+f"(words.z), "+f"(words.w)
               : "l"(from), "r"(static_cast<uint32_t>(looks))
               : "memory");
}

}  // namespace winnow::device
