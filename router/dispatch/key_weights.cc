#include "router/dispatch/key_weights.h"

#include <cmath>
#include <fstream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "router/dispatch/tenant.h"

namespace winnow {

absl::StatusOr<KeyWeights> KeyWeights::Parse(std::string_view text) {
  KeyWeights weights;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(AbslSv(text), '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    const absl::string_view key = absl::StripAsciiWhitespace(parts.second);
    double weight = 0;
    if (key.empty() || !absl::SimpleAtod(parts.first, &weight) || !std::isfinite(weight) || weight <= 0) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, " is not a weight above 0 and a key"));
    }
    if (!weights.by_tenant_.emplace(TenantOf(absl::StrCat("Bearer ", key)), weight).second) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, " has the key of an earlier one"));
    }
  }
  return weights;
}

absl::StatusOr<KeyWeights> KeyWeights::Load(const std::string& path) {
  std::ifstream in(path);
  if (!in.is_open()) return absl::NotFoundError(absl::StrCat("--key-weights: cannot read ", path));
  absl::StatusOr<KeyWeights> weights = Parse(std::string(std::istreambuf_iterator<char>(in), {}));
  if (!weights.ok()) return Annotate(weights.status(), absl::StrCat("--key-weights: ", path));
  return weights;
}

double KeyWeights::Of(const std::string& tenant) const {
  const auto found = by_tenant_.find(tenant);
  return found == by_tenant_.end() ? 1 : found->second;
}

}  // namespace winnow
