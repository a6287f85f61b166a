#pragma once
#include <span>

#include "common/selection/selection_spec.h"

namespace winnow {

inline constexpr int kMaxWindow = 32;
inline constexpr double kRidgeFactor = 1e-3;  // lambda = kRidgeFactor * mean(diag(X X^T))

// Predicts the query that follows `queries` ([w + 1] pointers to head_dim elements, oldest first, w <= kMaxWindow) of
// one head.
//
// The weights v express the newest query y by the w before it, X: (X X^T + lambda I) v = X y. Softmax, or clipping to
// >= 0 and normalising, makes them a convex blend; ridge leaves them. The prediction is v^T Z with Z the newest w
// queries. With a single query, or when all are zero or not finite, the prediction is the newest query. Solved in f64
// by Cholesky in a fixed order: deterministic.
void PredictNext(TemporalVariant variant, std::span<const float* const> queries, int head_dim, float* prediction);

}  // namespace winnow
