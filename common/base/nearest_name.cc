#include "common/base/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace winnow {
namespace {

// Levenshtein distance.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

}  // namespace

std::string_view NearestName(std::string_view wanted, std::span<const std::string_view> names) {
  std::string_view best;
  size_t best_distance = std::max<size_t>(2, wanted.size() / 2) + 1;
  for (std::string_view name : names) {
    const size_t distance = EditDistance(wanted, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

}  // namespace winnow
