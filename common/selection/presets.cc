#include "common/selection/presets.h"

#include <array>

#include "common/base/nearest_name.h"
#include "common/selection/spec_field.h"

namespace winnow {
namespace {

// Fields that a preset does not name have the defaults of SelectionSpec.
const std::array<SelectionPreset, 12>& AllPresets() {
  static const std::array<SelectionPreset, 12> presets = {{
      {.spec = {.preset = "winnow",
                .predictor = Predictor::kExact,
                .scorer = Scorer::kTwoStage,
                .score_all_below_tokens = 30720,
                .key_copy = KeyCopy::kInt8,
                .policy = Policy::kMass,
                .epsilon = 0.05f,
                .pool_factor = 4},
       .description = "waits for the real query, every key of up to 30k scored in 8 bits, above that those of the best "
                      "pages, the fewest rows that hold 95 % of the mass (default)"},
      {.spec = {.preset = "native", .predictor = Predictor::kExact, .scorer = Scorer::kIndexer},
       .description =
           "the model's own indexer scores its index keys, every position competes, as many rows as the model "
           "says (default of models that bring one: DeepSeek V3.2, GLM-5)",
       .source = "DeepSeek Sparse Attention, HiSparse"},
      {.spec = {.preset = "depth", .predictor = Predictor::kDepth, .lookahead = 1},
       .description = "queries predicted one layer ahead from the residual stream, every key scored, top-k"},
      {.spec = {.preset = "async-token",
                .predictor = Predictor::kTemporal,
                .window = 8,
                .temporal_variant = TemporalVariant::kSoftmax,
                .post_rope = true,
                .key_copy = KeyCopy::kInt8},
       .description = "queries predicted from past queries by softmaxed least squares, every key scored in 8 bits, "
                      "top-k",
       .source = "asynchronous KV disaggregation with query regression (the base paper)"},
      {.spec = {.preset = "exact-token", .predictor = Predictor::kExact},
       .description = "waits for the real query, every key scored, top-k: the oracle of token selection"},
      {.spec =
           {.preset = "sparseserve", .predictor = Predictor::kExact, .scorer = Scorer::kPageCuboid, .page_tokens = 32},
       .description = "real query, cuboid-mean scores of 32-token pages, top-k",
       .source = "SparseServe",
       .not_built = "working-set control, layer-segmented prefill"},
      {.spec = {.preset = "hisparse", .predictor = Predictor::kExact, .pool_factor = 3},
       .description = "real query, every key scored, top-k, LRU buffer of three budgets",
       .source = "HiSparse"},
      {.spec = {.preset = "lserve",
                .predictor = Predictor::kExact,
                .scorer = Scorer::kHierarchical,
                .page_tokens = 16,
                .physical_page_tokens = 64,
                .list_per = ListPer::kQueryHead,
                .budget_tokens = 4096,
                .profile_use = ProfileUse::kStreaming,
                .sink_tokens = 128,
                .recent_tokens = 256,
                .reuse_interval = 4},
       .description = "real query, logical pages of 16 in physical pages of 64, a list per query head, reused for 4 "
                      "positions; heads that the head profile calls streaming keep sinks and recent rows only",
       .source = "LServe",
       .not_built = "int8 and int4 KV, block-sparse prefill of streaming heads"},
      {.spec = {.preset = "psa",
                .predictor = Predictor::kExact,
                .scorer = Scorer::kPageCuboid,
                .page_tokens = 32,
                .policy = Policy::kMass,
                .epsilon = 0.05f,
                .budget_tokens = 8192},
       .description = "real query, 32-token pages taken in the order of their scores until 95 % of the mass is held",
       .source = "PSA (progressive sparse attention)",
       .not_built = "loading and computing pipelined page by page on the inference rank, one pool for all layers"},
      {.spec = {.preset = "quest", .predictor = Predictor::kExact, .scorer = Scorer::kPageMinmax, .page_tokens = 16},
       .description = "real query, min-max bounds of 16-token pages, top-k",
       .source = "Quest",
       .not_built = "dense attention in the first two layers"},
      {.spec = {.preset = "fixed", .predictor = Predictor::kFixed},
       .description = "the first rows after the sinks, always: a selection that costs nothing, to time others against"},
      {.spec = {.preset = "dense", .predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget},
       .description = "no selection: everything is attended"},
  }};
  return presets;
}

}  // namespace

std::span<const SelectionPreset> SelectionPresets() {
  return AllPresets();
}

absl::StatusOr<SelectionSpec> FindPreset(std::string_view name) {
  std::vector<std::string_view> names;
  for (const SelectionPreset& preset : AllPresets()) {
    if (preset.spec.preset == name) return preset.spec;
    names.push_back(preset.spec.preset);
  }
  std::string message = absl::StrCat("unknown selection preset \"", AbslSv(name.substr(0, 64)), "\"");
  if (const std::string_view nearest = NearestName(name.substr(0, 64), names); !nearest.empty()) {
    absl::StrAppend(&message, "; did you mean \"", AbslSv(nearest), "\"?");
  }
  for (size_t i = 0; i < names.size(); ++i)
    absl::StrAppend(&message, i == 0 ? "; there are: " : ", ", AbslSv(names[i]));
  return BlameField(absl::InvalidArgumentError(message), "preset");
}

}  // namespace winnow
