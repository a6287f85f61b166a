#include "tools/engine/decode_case.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/base/status.h"
#include "common/selection/spec_text.h"
#include "common/selection/spec_traits.h"

namespace winnow {
namespace {

constexpr std::array<std::pair<const char*, KvPlacement>, 5> kPlacements = {{
    {"dense", KvPlacement::kDense},
    {"fixed", KvPlacement::kFixed},
    {"colocated", KvPlacement::kColocated},
    {"colocated-dram", KvPlacement::kColocatedDram},
    {"disaggregated", KvPlacement::kDisaggregated},
}};

}  // namespace

const char* PlacementName(KvPlacement placement) {
  for (const auto& [name, value] : kPlacements) {
    if (value == placement) return name;
  }
  return "?";
}

absl::StatusOr<KvPlacement> ParsePlacement(std::string_view name) {
  std::string names;
  for (const auto& [known, value] : kPlacements) {
    if (name == known) return value;
    absl::StrAppend(&names, names.empty() ? "" : ", ", known);
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", AbslSv(name), "\" is none of ", names));
}

DecodeMode ModeOf(KvPlacement placement) {
  switch (placement) {
    case KvPlacement::kDense:
      return DecodeMode::kDense;
    case KvPlacement::kFixed:
      return DecodeMode::kFixed;
    case KvPlacement::kColocated:
    case KvPlacement::kColocatedDram:
      return DecodeMode::kColocated;
    case KvPlacement::kDisaggregated:
      return DecodeMode::kDisaggregated;
  }
  return DecodeMode::kDense;
}

RowTier DecodeCase::rows() const {
  if (placement == KvPlacement::kColocated) return RowTier::kInPlace;
  return placement == KvPlacement::kColocatedDram ? RowTier::kPinnedHost : RowTier::kDevice;
}

DecodeSlotShape DecodeCase::SlotShape(const ModelConfig& shard, uint32_t max_tokens) const {
  DecodeSlotShape shape{.layout = shard.kv_layout(kv), .max_rows = batch, .hidden_size = shard.hidden_size};
  if (placement == KvPlacement::kDense || placement == KvPlacement::kColocated) shape.dense_tokens = max_tokens;
  if (placement == KvPlacement::kDense) return shape;
  shape.sinks = spec.sink_tokens;
  shape.max_budget = spec.budget_tokens;
  shape.recent_tokens = spec.recent_tokens;
  shape.lists_per_kv_head = ListsPerKvHead(spec, shape.layout.group_size());
  shape.reuse_interval = spec.reuse_interval;
  if (!shape.holds_everything()) {
    shape.pool_slots = static_cast<uint32_t>(std::ceil(spec.budget_tokens * spec.pool_factor));
  }
  return shape;
}

absl::StatusOr<DecodeCase> CaseOf(const std::string& preset, KvPlacement placement, uint32_t budget,
                                  const ModelConfig& shard, Dtype kv) {
  WINNOW_ASSIGN_OR_RETURN(const SelectionSpec spec, ParseSpec(preset));
  if (IsDense(spec)) return DecodeCase{.preset = preset, .placement = KvPlacement::kDense, .spec = spec, .kv = kv};
  DecodeCase made{.preset = preset, .placement = placement, .spec = spec, .kv = kv};
  made.spec.budget_tokens = budget;
  made.spec.projection = Projection::kCacheRank;
  made.spec.prefetch = Prefetch::kNone;
  if (spec.profile_use == ProfileUse::kStreaming) {
    made.spec.profile_use = ProfileUse::kNone;
    for (size_t list = 0; list < shard.kv_layout(Dtype::kBf16).num_lists(); ++list) {
      made.spec.head_budgets.push_back(list % 2 == 0 ? budget : 0);
    }
  }
  if (kv != Dtype::kBf16) {
    if (placement != KvPlacement::kColocated) {
      return absl::FailedPreconditionError("rows that are sent, or lie in DRAM, are bf16");
    }
    if (kv == Dtype::kI8 ? SelectsWholePages(spec) && spec.policy == Policy::kMass
                         : spec.scorer == Scorer::kPageCuboid) {
      return absl::FailedPreconditionError(
          "cuboid-means, of rows of int8 masses of pages, are taken from rows of bf16");
    }
  }
  // Keys of int8 are scored in their rows.
  if (kv == Dtype::kI8) made.spec.key_copy = KeyCopy::kNone;
  const bool far = placement == KvPlacement::kColocatedDram || (kv != Dtype::kBf16 && kv != Dtype::kI8);
  if (far && ScoresKeys(spec)) made.spec.key_copy = KeyCopy::kInt8;
  WINNOW_RETURN_IF_ERROR(CheckDeviceSpec(made.spec, made.rows()));
  return made;
}

}  // namespace winnow
