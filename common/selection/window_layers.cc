#include "common/selection/window_layers.h"

#include <algorithm>

namespace winnow {

SelectionSpec WithWindowLayers(SelectionSpec spec, std::span<const uint32_t> windows, int num_kv_heads) {
  if (windows.empty() || IsDense(spec)) return spec;
  const auto heads = static_cast<size_t>(num_kv_heads);
  if (spec.head_budgets.empty()) spec.head_budgets.assign(windows.size() * heads, spec.budget_tokens);
  const size_t lists = std::min(spec.head_budgets.size(), windows.size() * heads);
  for (size_t list = 0; list < lists; ++list) {
    if (windows[list / heads] > 0) spec.head_budgets[list] = 0;
  }
  spec.recent_tokens = std::max(spec.recent_tokens, *std::max_element(windows.begin(), windows.end()));
  return spec;
}

absl::Status CheckKeepsWindows(const SelectionSpec& spec, std::span<const uint32_t> windows, int num_kv_heads) {
  const SelectionSpec kept = WithWindowLayers(spec, windows, num_kv_heads);
  if (kept.recent_tokens != spec.recent_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("selection.recent_tokens ", spec.recent_tokens,
                                                   " is less than the model's sliding window of ", kept.recent_tokens));
  }
  if (kept.head_budgets != spec.head_budgets) {
    return absl::InvalidArgumentError(
        "selection.head_budgets must be 0 for the heads of layers with a sliding window: these attend to nothing else");
  }
  return absl::OkStatus();
}

}  // namespace winnow
