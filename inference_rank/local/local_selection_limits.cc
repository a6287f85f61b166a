// What a rank of some shape selects in place, and the memory that it takes: all that is known before there is a GPU.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "cache_rank/select/device/select_params.h"
#include "cache_rank/select/predictor/from_past.h"
#include "common/base/status.h"
#include "common/selection/spec_traits.h"
#include "inference_rank/local/local_selection.h"
#include "kernels/device/params/page_units.h"

namespace winnow {
namespace {

constexpr uint32_t kLeastMaxBudget = 2048;  // requests may ask for so much whatever the rank was started with
constexpr uint32_t kMostBudget = 6144;      // selecting more row by row takes more shared memory than a block has
constexpr uint32_t kMostUnitBudget = 8192;  // of a rank that was started with a selection of units
constexpr uint32_t kMostRowsAround = 1024;  // sinks and recent window
constexpr int kLeastHeadDim = 64;           // of kernels that select
constexpr uint32_t kLeastPastQueries = 9;   // of a row: windows of 8, whatever the rank was started with

// Which heads stream is no budget.
SelectionSpec WithoutBudgets(SelectionSpec spec, uint32_t max_budget) {
  const SelectionSpec plain;
  spec.preset = "";
  spec.budget_tokens = max_budget;
  if (!HasStreamingHeads(spec)) spec.head_budgets = {};
  for (uint32_t& budget : spec.head_budgets) budget = std::min(budget, 1u) * max_budget;
  spec.profile_use = plain.profile_use;
  spec.dense_below_tokens = plain.dense_below_tokens;
  spec.pool_factor = plain.pool_factor;
  spec.budget_growth = plain.budget_growth;
  spec.projection = plain.projection;
  return spec;
}

// Contexts too short for the first of two stages are scored key by key: the same selection, found by less work.
SelectionSpec AsServed(SelectionSpec spec, uint32_t max_context_tokens) {
  const bool scores_all = spec.scorer == Scorer::kTwoStage && max_context_tokens <= spec.score_all_below_tokens;
  if (scores_all) spec.scorer = Scorer::kToken;
  return spec;
}

// Heads of layers with a sliding window stream (common/selection/window_layers.h): of what is selected, which is never
// there, they keep the specification from nothing.
SelectionSpec WithoutWindows(SelectionSpec spec, const LocalSelection::Shape& shape) {
  for (size_t list = 0; list < spec.head_budgets.size(); ++list) {
    if (shape.has_window(static_cast<int>(list) / shape.layout.num_kv_heads)) spec.head_budgets[list] = 1;
  }
  return spec;
}

// Of those that requests may ask for beside the rank's own, what takes the most memory for the scores of pages, for the
// list of them, and for their masses.
std::vector<SelectionSpec> PageSelections() {
  const SelectionSpec minmax{.predictor = Predictor::kExact, .scorer = Scorer::kPageMinmax, .budget_tokens = 1};
  SelectionSpec hierarchical = minmax, by_mass = minmax;
  hierarchical.scorer = Scorer::kHierarchical;
  by_mass.scorer = Scorer::kPageCuboid;
  by_mass.page_tokens = 32;
  by_mass.policy = Policy::kMass;
  return {minmax, hierarchical, by_mass};
}

}  // namespace

uint32_t LocalSelection::MaxBudget(const Shape& shape) {
  const SelectionSpec& spec = shape.selection;
  const uint32_t wanted = IsDense(spec) ? 0 : GreatestHeadBudget(spec, shape.layout.num_lists());
  const uint32_t most = SelectsUnits(spec, shape.layout.group_size()) && !shape.stages ? kMostUnitBudget : kMostBudget;
  return std::min({std::max(wanted, kLeastMaxBudget), most, shape.max_context_tokens});
}

uint32_t LocalSelection::MaxListRows(const Shape& shape) {
  return MaxBudget(shape) + kMostRowsAround + kBlockTokens + shape.selection.reuse_interval - 1;
}

int LocalSelection::ListsPerKvHead(const Shape& shape) {
  return shape.stages ? 1 : winnow::ListsPerKvHead(shape.selection, shape.layout.group_size());
}

uint32_t LocalSelection::StagingSlots(const Shape& shape) {
  if (!shape.stages || IsDense(shape.selection)) return 0;
  const double wanted = std::ceil(static_cast<double>(MaxBudget(shape)) * std::max(1.0f, shape.selection.pool_factor));
  return static_cast<uint32_t>(std::min<double>(wanted, shape.max_context_tokens));
}

DeviceKvShape LocalSelection::StoreShape(const Shape& shape, uint32_t num_slot_pages) {
  const SelectionSpec spec = AsServed(shape.selection, shape.max_context_tokens);
  DeviceKvShape store{.layout = shape.layout,
                      .max_sequences = static_cast<uint32_t>(shape.max_rows),
                      .max_positions = shape.max_context_tokens,
                      .num_blocks = uint64_t{num_slot_pages} * (kSlotPageTokens / kBlockTokens),
                      .pool_slots = StagingSlots(shape),
                      .rows = RowTier::kInPlace};
  // Those of steps under way go on top, before a row that leaves is asked for its past.
  store.ring_queries = std::max(winnow::PastQueries(spec), kLeastPastQueries) + StepClient::kMaxStepsUnderWay;
  if (IsDense(spec)) return store;
  store.key_copy = spec.key_copy == KeyCopy::kInt8 && shape.layout.dtype != Dtype::kI8;
  if (spec.scorer != Scorer::kToken) store.page_tokens = std::min<uint32_t>(spec.page_tokens, kBlockTokens);
  store.cuboids = spec.scorer == Scorer::kPageCuboid;
  store.page_groups = LeavesOutGroups(spec, shape.max_context_tokens);
  return store;
}

device::ExchangeShape LocalSelection::Exchange(const Shape& shape) {
  return {.layout = shape.layout,
          .max_rows = shape.max_rows,
          .hidden_size = shape.hidden_size,
          .max_budget = MaxBudget(shape),
          .lists_per_kv_head = ListsPerKvHead(shape)};
}

SelectionSpec LocalSelection::KindSpec(const Shape& shape, const SelectionSpec& spec) {
  return WithoutBudgets(WithoutWindows(AsServed(spec, shape.max_context_tokens), shape), MaxBudget(shape));
}

size_t LocalSelection::IndexBytesPerRow(const Shape& shape) {
  const DeviceKvBytes with = BytesOf(StoreShape(shape, 2)), without = BytesOf(StoreShape(shape, 1));
  return (with.index() - without.index() + kSlotPageTokens - 1) / kSlotPageTokens;
}

size_t LocalSelection::DeviceBytes(const device::DeviceTable& table, const Shape& shape) {
  const auto store = DeviceKvStore::Unallocated(StoreShape(shape, 1));
  const DeviceSelection::Model model{.rope = {std::vector<float>(shape.layout.head_dim / 2), 1}};
  device::AttentionList list{};
  device::InferenceInbox in_place;
  in_place.lists = &list;
  const int query_features = shape.layout.num_query_heads * shape.layout.head_dim;
  const size_t projections =
      shape.max_rows * (query_features * sizeof(float) + shape.hidden_size * DtypeBytes(Dtype::kBf16)) +
      table.matmul->decode_scratch_bytes(shape.max_rows, query_features);
  size_t of_kind = 0;
  SelectionSpec own = shape.selection;
  if (IsDense(own)) own.predictor = Predictor::kExact;
  const auto reserve = [&](const SelectionSpec& spec) {
    const auto plan = DevicePlan::Unallocated(store.get(), KindSpec(shape, spec), shape.max_rows, MaxBudget(shape));
    const size_t bytes =
        plan->DeviceBytes() + projections +
        DeviceSelection::DeviceBytes(&table, store.get(), plan.get(), model, Exchange(shape), &in_place);
    of_kind = std::max(of_kind, bytes);
  };
  reserve(own);
  for (const SelectionSpec& pages : PageSelections()) {
    if (Serves(table, shape, pages).ok()) reserve(pages);
  }
  return BytesOf(StoreShape(shape, 1)).index() + CacheInboxBytes(Exchange(shape)) + kMaxKinds * of_kind;
}

absl::Status LocalSelection::Serves(const device::DeviceTable& table, const Shape& shape, const SelectionSpec& wanted) {
  if (IsDense(wanted)) return absl::OkStatus();
  const SelectionSpec spec = WithoutWindows(AsServed(wanted, shape.max_context_tokens), shape);
  const auto refuse = [](std::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat("not selected in place: ", AbslSv(what)));
  };
  WINNOW_RETURN_IF_ERROR(CheckDeviceSpec(spec, RowTier::kInPlace));
  const DeviceKvShape index = StoreShape(shape, 1);
  if (const uint32_t most = index.ring_queries - StepClient::kMaxStepsUnderWay; winnow::PastQueries(spec) > most) {
    return refuse(absl::StrCat("predictors that look back farther than a window of ", most - 1));
  }
  const int lists_per_kv_head = winnow::ListsPerKvHead(spec, shape.layout.group_size());
  if (lists_per_kv_head != ListsPerKvHead(shape)) return refuse("a list for each query head, or none where others do");
  const bool streams = HasStreamingHeads(spec), keeps = spec.reuse_interval > 1;
  if (keeps && PredictsFromPast(spec.predictor)) return refuse("selections that are kept of predictors that look back");
  if ((keeps || streams) && shape.stages) return refuse("kept selections and streaming heads with staged rows");
  if ((keeps || streams) && spec.dense_below_tokens > 0) {
    return refuse("kept selections and streaming heads behind positions that are dense (dense_below_tokens)");
  }
  if (shape.layout.head_dim < kLeastHeadDim) return refuse("so small heads");
  if (spec.predictor == Predictor::kDepth && !shape.projects_heads_alone) {
    return refuse("queries of such layers, from the residual");
  }
  // One of the longest context covers everything.
  const uint32_t max_budget = MaxBudget(shape);
  if (max_budget < shape.max_context_tokens && GreatestHeadBudget(spec, shape.layout.num_lists()) > max_budget) {
    return refuse(absl::StrCat("budgets above ", max_budget));
  }
  const bool by_units = SelectsUnits(spec, shape.layout.group_size());
  if (max_budget > kMostBudget && !by_units) {
    return refuse(absl::StrCat("anything but units of pages by a rank with budgets above ", kMostBudget));
  }
  if (spec.sink_tokens + spec.recent_tokens > kMostRowsAround) return refuse("so many sinks and recent tokens");
  const bool is_int8 = shape.layout.dtype == Dtype::kI8;  // whose keys are those of the rows
  if (spec.key_copy != KeyCopy::kNone && !index.key_copy && !is_int8) {
    return refuse("8-bit keys, which the rank does not keep");
  }
  if (spec.scorer == Scorer::kToken) return absl::OkStatus();
  const bool lacks_groups = LeavesOutGroups(spec, shape.max_context_tokens) && !index.page_groups;
  if (!lacks_groups && !IndexIn(index, spec).has_value()) {
    return refuse("bounds of such pages, for which the rank has no room");
  }
  if (!FitsSelection(spec, shape.max_context_tokens)) {
    return refuse("so long contexts without groups of pages (group_candidate_tokens)");
  }
  if (lacks_groups) {
    return refuse("groups of pages (group_candidate_tokens), which the rank does not keep");
  }
  const uint32_t unit = spec.scorer == Scorer::kHierarchical ? spec.physical_page_tokens : spec.page_tokens;
  if (is_int8 && SelectsWholePages(spec) && spec.policy == Policy::kMass) {
    return refuse("policy mass of whole pages with rows of int8");
  }
  if (by_units && shape.max_context_tokens / unit + 1 > device::kMaxPageUnits) return refuse("so many pages");
  if (by_units && shape.layout.group_size() > device::kMaxUnitHeads) return refuse("so many query heads of a kv head");
  const bool built = !SelectsWholePages(spec) ||
                     (by_units ? table.page_units->select_units != nullptr : table.selection->select_pages != nullptr);
  return built ? absl::OkStatus() : refuse("whole pages on this device");
}

uint32_t LocalSelection::IndexOf(const Shape& shape, const SelectionSpec& wanted) {
  if (IsDense(wanted)) return 0;
  const DeviceKvShape store = StoreShape(shape, 1);
  const DeviceIndex index = IndexIn(store, AsServed(wanted, shape.max_context_tokens)).value_or(DeviceIndex{});
  if (index.empty()) return 0;
  return index == store.own_index() ? 1 : 2 * index.page_tokens + index.cuboids;
}

}  // namespace winnow
