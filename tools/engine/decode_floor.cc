#include "tools/engine/decode_floor.h"

#include <algorithm>
#include <vector>

#include "common/selection/page_groups.h"

namespace winnow {
namespace {

size_t RowBytes(const KvLayout& layout) {
  return layout.row.scales_offset_bytes(layout.head_dim, layout.dtype) +
         (layout.dtype == Dtype::kBf16 ? 0 : 2 * sizeof(float));
}

}  // namespace

double StepBytes::FloorUs(KvPlacement placement, const EngineRates& rates, std::string* floor_of) const {
  const bool beside = placement == KvPlacement::kDisaggregated;
  const double pushed_bytes = static_cast<double>(pushed), scored_bytes = static_cast<double>(scored);
  const double here = static_cast<double>(weights + attended) + (beside ? 0 : scored_bytes);
  std::vector<std::pair<double, const char*>> floors = {{here / rates.read, "HBM"}};
  if (beside) floors.emplace_back(pushed_bytes / rates.nvlink, "NVLink");
  if (beside) floors.emplace_back((scored_bytes + pushed_bytes) / rates.read, "the cache rank's HBM");
  if (placement == KvPlacement::kColocatedDram) floors.emplace_back(pushed_bytes / rates.pcie, "PCIe");
  const auto greatest = std::max_element(floors.begin(), floors.end());
  *floor_of = greatest->second;
  return greatest->first;
}

size_t AttendedBytes(const EngineSetting& setting, const DecodeCase& of, const SelectedLists* selected) {
  const SelectionSpec& spec = of.spec;
  const KvLayout layout = setting.shard().kv_layout(of.kv);
  const size_t lists = static_cast<size_t>(of.batch) * layout.num_lists();
  if (of.placement == KvPlacement::kDense) {
    size_t rows = 0;
    for (int layer = 0; layer < layout.num_layers; ++layer) {
      const size_t window = setting.config.window(layer), context = setting.context_tokens;
      rows += of.batch * layout.num_kv_heads * (window > 0 ? std::min(window, context) : context);
    }
    return rows * RowBytes(layout);
  }
  size_t rows = lists * (spec.sink_tokens + spec.recent_tokens);
  if (selected == nullptr) return (rows + lists * spec.budget_tokens) * RowBytes(layout);
  const size_t per_list = selected->counts.size() / lists;
  std::vector<size_t> seen_in;
  for (size_t list = 0; list < lists; ++list) {
    for (size_t s = list * per_list; s < (list + 1) * per_list; ++s) {
      if (per_list == 1) {
        rows += selected->counts[s];
        continue;
      }
      for (size_t i = 0; i < selected->counts[s]; ++i) {
        const uint32_t entry = selected->entries[s * selected->stride + i];
        if (entry >= seen_in.size()) seen_in.resize(entry + 1, 0);
        rows += seen_in[entry] != list + 1;
        seen_in[entry] = list + 1;
      }
    }
  }
  return rows * RowBytes(layout);
}

size_t ScoredBytes(const EngineSetting& setting, const DecodeCase& of, const SelectedLists& selected) {
  const SelectionSpec& spec = of.spec;
  const KvLayout layout = setting.shard().kv_layout(Dtype::kBf16);
  const size_t head_dim = layout.head_dim, context = setting.context_tokens;
  const bool in_8_bits = spec.key_copy != KeyCopy::kNone || of.kv == Dtype::kI8;
  const size_t key_bytes = in_8_bits ? head_dim + sizeof(float) : 2 * head_dim;
  size_t bytes = 0;
  const bool two_stage = spec.scorer == Scorer::kTwoStage;
  const auto selectable =
      static_cast<uint32_t>(context - std::min<size_t>(context, spec.sink_tokens + spec.recent_tokens));
  if (spec.scorer == Scorer::kToken || (two_stage && ScoresAllOf(spec, selectable, spec.budget_tokens))) {
    bytes = context * key_bytes;
  } else {
    const size_t bound_bytes = 4 * head_dim;
    size_t pages = context / spec.page_tokens;
    if (two_stage) {
      const PageGroups groups = PageGroupsOf(spec, spec.budget_tokens, spec.sink_tokens, spec.sink_tokens + selectable);
      if (groups.leaves_out()) {
        bytes += groups.end * bound_bytes;
        pages -= groups.num_left_out() * kGroupPages;
      }
      bytes += CandidateTokens(spec, spec.budget_tokens) * key_bytes;
    }
    bytes += pages * bound_bytes;
  }
  size_t lists = 0;
  for (size_t list = 0; list < layout.num_lists(); ++list) lists += HeadBudget(spec, list) > 0;
  bytes *= lists * of.batch;
  if (spec.scorer == Scorer::kPageCuboid && spec.policy == Policy::kMass) {
    for (const uint32_t count : selected.counts) bytes += count * key_bytes;
  }
  return bytes / spec.reuse_interval;
}

}  // namespace winnow
