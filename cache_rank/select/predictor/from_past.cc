#include "cache_rank/select/predictor/from_past.h"

#include <algorithm>
#include <array>

#include "cache_rank/select/predictor/regression.h"
#include "common/base/check.h"

namespace winnow {

SelectionSpec PrefetchSpec(const SelectionSpec& spec) {
  SelectionSpec prefetch = spec;
  prefetch.predictor = Predictor::kTemporal;
  return prefetch;
}

uint32_t PastQueries(const SelectionSpec& spec) {
  if (IsDense(spec) || !PredictsFromPast(spec.predictor)) return 0;
  return spec.predictor == Predictor::kTemporal ? spec.window + 1 : 1;
}

uint32_t RingQueries(const SelectionSpec& spec) {
  if (spec.prefetch == Prefetch::kTemporal && !IsDense(spec)) return spec.window + 2 + QueryRing::kSlack;
  switch (spec.predictor) {
    case Predictor::kDense:
      return 1;
    case Predictor::kExact:
    case Predictor::kLast:
    case Predictor::kDepth:
    case Predictor::kFixed:
      return spec.reuse_interval + QueryRing::kSlack;
    case Predictor::kTemporal:
      return spec.window + 1 + spec.reuse_interval + QueryRing::kSlack;
  }
  return 1;
}

void PredictFromPast(const KernelTable& kernels, const RopeShape& rope, const SelectionSpec& spec,
                     const QueryRing& ring, uint32_t position, int first_head, int num_heads, int head_dim,
                     float* queries) {
  WINNOW_CHECK(position > 0 && ring.Holds(position - 1));
  const uint32_t count = std::min(PastQueries(spec), position - ring.first());
  const bool rotated = spec.predictor == Predictor::kTemporal && spec.post_rope;
  std::array<const float*, kMaxWindow + 1> past;
  for (int head = 0; head < num_heads; ++head) {
    const size_t offset = static_cast<size_t>(first_head + head) * head_dim;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t at = position - count + i;
      past[i] = (rotated ? ring.rotated(at) : ring.pre(at)) + offset;
    }
    PredictNext(spec.temporal_variant, {past.data(), count}, head_dim, queries + head * head_dim);
  }
  if (rotated) return;
  kernels.rotate({.q_pre_rope = queries,
                  .num_rows = 1,
                  .num_heads = num_heads,
                  .head_dim = head_dim,
                  .positions = &position,
                  .rope_inv_freq = rope.inv_freq.data(),
                  .rope_attention_factor = rope.attention_factor,
                  .q = queries});
}

}  // namespace winnow
