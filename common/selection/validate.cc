#include "common/selection/validate.h"

#include "common/selection/spec_fields.h"

namespace winnow {
namespace {

absl::Status Excludes(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("selection: ", AbslSv(what)));
}

// Far more lists than any model has: 4096 layers of 16 kv heads.
constexpr size_t kMaxLists = 65536;

// The model's own indexer decides by itself: what others are told how to do has no meaning beside it.
absl::Status CheckIndexer(const SelectionSpec& spec) {
  if (!SelectsFromAll(spec)) return absl::OkStatus();
  const auto needs = [](std::string_view field, std::string_view value) {
    return SpecError(field, absl::StrCat("must be ", AbslSv(value), " with the scorer \"indexer\""));
  };
  if (spec.predictor != Predictor::kExact) return needs("predictor", "\"exact\"");
  if (spec.prefetch != Prefetch::kNone) return needs("prefetch", "\"none\"");
  if (spec.list_per != ListPer::kKvHead) return needs("list_per", "\"kv-head\"");
  if (spec.policy != Policy::kTopK) return needs("policy", "\"top-k\"");
  if (WaitsForVerification(spec)) return Excludes("the scorer \"indexer\" can be neither corrected nor guarded");
  if (!spec.head_budgets.empty() || spec.profile_use != ProfileUse::kNone) {
    return Excludes("the scorer \"indexer\" has one budget for all heads");
  }
  return absl::OkStatus();
}

// What specifications can say and this version does not do yet.
absl::Status CheckBuilt(const SelectionSpec& spec) {
  auto not_built = [](std::string_view what) {
    return absl::UnimplementedError(absl::StrCat("selection: ", AbslSv(what), " is not built yet"));
  };
  if (WaitsForVerification(spec) && spec.list_per == ListPer::kQueryHead) {
    return not_built("correction of lists per query head");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSelection(const SelectionSpec& spec) {
  for (const SelectionField& field : SelectionFields()) WINNOW_RETURN_IF_ERROR(field.Check(spec));
  if (spec.physical_page_tokens < spec.page_tokens) {
    return SpecError("physical_page_tokens", "must be at least page_tokens");
  }
  if (spec.head_budgets.size() > kMaxLists) {
    return Excludes(absl::StrCat("head_budgets has ", spec.head_budgets.size(), " budgets, at most ", kMaxLists));
  }
  if (!spec.head_budgets.empty() && IsDense(spec)) return Excludes("budgets by head need a predictor and a budget");
  for (size_t list = 0; list < spec.head_budgets.size(); ++list) {
    if (spec.head_budgets[list] != kUnlimitedBudget) continue;
    return Excludes(absl::StrCat("head_budgets[", list, "] must be a number of rows"));
  }
  const bool verification = spec.correction == Correction::kRemote || spec.min_captured_mass > 0;
  if (verification && spec.predictor == Predictor::kFixed) {
    return Excludes("the predictor \"fixed\" can be neither corrected nor guarded");
  }
  if (verification && spec.key_copy == KeyCopy::kInt4) {
    return SpecError("key_copy",
                     "\"int4\" is too coarse for verification: min_captured_mass must be 0 and correction \"none\"");
  }
  WINNOW_RETURN_IF_ERROR(CheckIndexer(spec));
  return CheckBuilt(spec);
}

absl::Status CheckFitsModel(const SelectionSpec& spec, const KvLayout& layout) {
  if (layout.dtype == Dtype::kI8 && layout.row.value_is_key) {
    return absl::UnimplementedError(
        "KV rows are int8 (--kv-dtype), and those of a model with latent attention are bf16 or f32: one scale would "
        "have to serve its latent, its turning part and its index key");
  }
  if (spec.list_per == ListPer::kQueryHead && layout.group_size() > kMaxMaskedHeads) {
    return SpecError("list_per", absl::StrCat("is query-head, which works with at most ", kMaxMaskedHeads,
                                              " query heads per kv head; the model has ", layout.group_size()));
  }
  if (SelectsFromAll(spec) && !layout.has_indexer()) {
    return SpecError("scorer", "is \"indexer\", and the model brings none");
  }
  if (SelectsFromAll(spec) && spec.sink_tokens > 0) {
    return SpecError("sinks", "must be 0 with the scorer \"indexer\": every position competes");
  }
  if (layout.dtype == Dtype::kI8 && spec.key_copy == KeyCopy::kInt4) {
    return SpecError("key_copy",
                     "is int4, but KV rows are int8 (--kv-dtype), whose keys are scored as they are: take "
                     "int8 or none");
  }
  const size_t budgets = spec.head_budgets.size();
  if (budgets == 0 || budgets == layout.num_lists()) return absl::OkStatus();
  return Excludes(absl::StrCat("head_budgets has ", budgets, " budgets, the model ", layout.num_layers, " layers of ",
                               layout.num_kv_heads, " kv heads"));
}

}  // namespace winnow
