#include "tools/bench/quality/paired_statistics.h"

#include <algorithm>
#include <cmath>

namespace winnow {

Interval WilsonInterval(int right, int count) {
  if (count == 0) return {};
  constexpr double z = 1.959963985;  // 97.5 % quantile of the normal distribution
  const double n = count, share = right / n;
  const double centre = (share + z * z / (2 * n)) / (1 + z * z / n);
  const double half = z / (1 + z * z / n) * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n));
  return {std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

double SignTest(int lost, int gained) {
  const int n = lost + gained;
  if (n == 0) return 1;
  double tail = 0;  // of at most min(lost, gained) of n fair coins
  for (int k = 0; k <= std::min(lost, gained); ++k) {
    tail += std::exp(std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0) - n * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

}  // namespace winnow
