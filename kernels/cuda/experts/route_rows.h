#pragma once
#include "kernels/device/params/experts.h"

namespace winnow::device {

// ExpertKernels::route.
void RouteRows(Stream stream, ExpertRows rows, const RouteRowsParams& params);

// Its first half: routed.logits of at least one row.
void RouterLogits(Stream stream, ExpertRows rows, const RouteRowsParams& params);

inline unsigned DivideUp(int64_t a, int64_t b) {
  return static_cast<unsigned>((a + b - 1) / b);
}

}  // namespace winnow::device
