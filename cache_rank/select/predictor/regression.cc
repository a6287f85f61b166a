#include "cache_rank/select/predictor/regression.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/base/check.h"

namespace winnow {
namespace {

using Matrix = std::array<std::array<double, kMaxWindow>, kMaxWindow>;
using Vector = std::array<double, kMaxWindow>;

double Dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// Solves A x = b for a positive definite A in place; false when A is not (numerically).
bool CholeskySolve(int n, Matrix& a, Vector& b) {
  for (int j = 0; j < n; ++j) {
    double diagonal = a[j][j];
    for (int k = 0; k < j; ++k) diagonal -= a[j][k] * a[j][k];
    if (!(diagonal > 0) || !std::isfinite(diagonal)) return false;
    a[j][j] = std::sqrt(diagonal);
    for (int i = j + 1; i < n; ++i) {
      double sum = a[i][j];
      for (int k = 0; k < j; ++k) sum -= a[i][k] * a[j][k];
      a[i][j] = sum / a[j][j];
    }
  }
  for (int i = 0; i < n; ++i) {
    for (int k = 0; k < i; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  for (int i = n - 1; i >= 0; --i) {
    for (int k = i + 1; k < n; ++k) b[i] -= a[k][i] * b[k];
    b[i] /= a[i][i];
  }
  return true;
}

void Normalise(TemporalVariant variant, int n, Vector& v) {
  double sum = 0;
  if (variant == TemporalVariant::kSoftmax) {
    const double max = *std::max_element(v.begin(), v.begin() + n);
    for (int i = 0; i < n; ++i) sum += v[i] = std::exp(v[i] - max);
  } else if (variant == TemporalVariant::kClipped) {
    for (int i = 0; i < n; ++i) sum += v[i] = std::max(v[i], 0.0);
    sum = std::max(sum, 1e-6);
  } else {
    return;
  }
  for (int i = 0; i < n; ++i) v[i] /= sum;
}

}  // namespace

void PredictNext(TemporalVariant variant, std::span<const float* const> queries, int head_dim, float* prediction) {
  WINNOW_CHECK(!queries.empty() && queries.size() <= kMaxWindow + 1);
  const int w = static_cast<int>(queries.size()) - 1;
  const float* newest = queries[w];
  Matrix gram;
  Vector weights;
  double trace = 0;
  for (int i = 0; i < w; ++i) {
    for (int j = 0; j <= i; ++j) gram[i][j] = Dot(queries[i], queries[j], head_dim);
    trace += gram[i][i];
    weights[i] = Dot(queries[i], newest, head_dim);
  }
  for (int i = 0; i < w; ++i) gram[i][i] += kRidgeFactor * trace / w;
  if (w == 0 || !CholeskySolve(w, gram, weights)) {
    std::copy_n(newest, head_dim, prediction);
    return;
  }
  Normalise(variant, w, weights);
  for (int d = 0; d < head_dim; ++d) {
    double sum = 0;
    for (int i = 0; i < w; ++i) sum += weights[i] * queries[i + 1][d];
    prediction[d] = static_cast<float>(sum);
  }
}

}  // namespace winnow
