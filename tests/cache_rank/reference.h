#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cache_rank/select/host/served_shape.h"
#include "cache_rank/select/predictor/from_past.h"
#include "common/base/kv_layout.h"
#include "common/selection/selection_spec.h"

namespace winnow::test {

// A small model's shape with f32 rows, so that references need no rounding of keys.
ServedShape SmallShape(int num_layers = 3);
// A specification that becomes sparse early: sinks 4, recent 32, budget 48.
SelectionSpec SmallSpec(Predictor predictor);

// Uniform in [-1, 1], a function of the arguments alone.
float Noise(uint64_t seed, uint64_t a, uint64_t b = 0, uint64_t c = 0);

// Brute force in double: the definitions, not the kernels.
using Vector = std::vector<double>;
Vector RotateReference(const Vector& q, uint32_t position, const RopeShape& rope);
// The study's regression: solves the normal equations by Gauss-Jordan elimination with pivoting.
Vector RegressReference(TemporalVariant variant, const std::vector<Vector>& queries);
// scale * q.k, with a cap above 0 cap * tanh(that / cap): what the following are made of.
double ScoreReference(const Vector& query, const Vector& key, double scale, double cap = 0);
// softmax over all keys.
Vector SoftmaxReference(const Vector& query, const std::vector<Vector>& keys, double scale, double cap = 0);
// importance of each key for a group of queries.
Vector ImportanceReference(GroupAggregation aggregation, const std::vector<Vector>& queries,
                           const std::vector<Vector>& keys, double scale, double cap = 0);
// Mass that [0, sinks) + selected + [recent_start, keys.size()) holds, averaged over the queries.
double MassReference(const std::vector<Vector>& queries, const std::vector<Vector>& keys, double scale, uint32_t sinks,
                     const std::vector<uint32_t>& selected, uint32_t recent_start, double cap = 0);

// Score of the page keys[first, first + tokens): what a query's best point in its box scores. `cuboid`: the box is
// drawn in to the keys' mean distance from its centre.
double PageScoreReference(bool cuboid, const Vector& query, const std::vector<Vector>& keys, uint32_t first,
                          uint32_t tokens);
// Importance of rows [0, end) to one query by the scorer `hierarchical` (LServe): the best bound of a logical page, by
// key-wise minima and maxima, of those in the row's physical page that end by `end`.
Vector HierarchicalReference(const Vector& query, const std::vector<Vector>& keys, uint32_t end, uint32_t page,
                             uint32_t physical_page);

// Empty when `selected` is a set of `count` ascending positions of [first, last) that no position outside beats by more
// than `tolerance`, relative to the importance for positive ones and absolute below 1; otherwise says what is wrong.
std::string CheckTopK(const Vector& importance, const std::vector<uint32_t>& selected, uint32_t first, uint32_t last,
                      uint32_t count, double tolerance);

}  // namespace winnow::test
