#include "cmd/role/options/selection_options.h"

#include "common/model/synthetic_models.h"
#include "common/selection/head_profile.h"
#include "common/selection/presets.h"
#include "common/selection/spec_text.h"
#include "common/selection/validate.h"

namespace winnow {
namespace {

constexpr std::string_view kByModel = "auto";

}  // namespace

void SelectionOptions::Declare(Fields& fields) {
  std::string names;
  for (const SelectionPreset& preset : SelectionPresets()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", preset.spec.preset);
  }
  fields.Custom(
      "selection", "PRESET[,FIELD=VALUE...]",
      "Selection of requests that ask for none: auto, which is native for models that bring an indexer and winnow for "
      "all others, or a preset and what is changed of it, for example "
      "winnow,lookahead=2,budget=512. `winnow selection list` describes the presets, `winnow selection explain` the "
      "fields. Presets: " +
          names + ".",
      [this](std::string_view text) {
        specification = std::string(text);
        return text == kByModel ? absl::OkStatus() : ParseSpec(text).status();
      },
      [this] { return specification; });
  fields.Integer(
      "budget", &budget,
      "Selected rows per head, sinks and recent rows not counted; also the most that a request may ask for. More rows "
      "mean more resident memory and more bytes per step, and a larger share of the attention. 0 = that of "
      "--selection.");
  fields.Integer<int64_t>("sinks", &sinks, "First positions that are always attended; -1 = that of --selection.", -1,
                          4096);
  fields.Integer<int64_t>("recent", &recent, "Newest positions that are always attended; -1 = that of --selection.", -1,
                          65536);
  fields.Number("pool-factor", &pool_factor,
                "Rows kept resident around the selection, as a multiple of the budget. More memory, fewer bytes per "
                "step; never another result. 0 = that of --selection.",
                0, 64);
  fields.File(
      "head-profile", &head_profile,
      "File of `winnow profile-heads` for this model. Selections with profile_use=budgets share out their budget "
      "among the heads by it; with profile_use=streaming its streaming heads keep sinks and recent rows only. "
      "A selection that uses one, such as lserve, is refused without it.");
}

absl::StatusOr<SelectionSpec> SelectionOptions::Resolve(const std::string& model) const {
  std::string_view text = specification;
  if (text == kByModel) {
    const absl::StatusOr<ModelConfig> config = ModelConfigOf(model);  // whose errors others report
    text = config.ok() && config->latent && config->latent->indexer.num_heads > 0 ? "native" : "winnow";
  }
  WINNOW_ASSIGN_OR_RETURN(SelectionSpec spec, ParseSpec(text));
  if (budget > 0) spec.budget_tokens = budget;
  if (sinks >= 0) spec.sink_tokens = static_cast<uint32_t>(sinks);
  if (recent >= 0) spec.recent_tokens = static_cast<uint32_t>(recent);
  if (pool_factor > 0) spec.pool_factor = pool_factor;
  if (head_profile.empty()) WINNOW_RETURN_IF_ERROR(CheckNeedsNoHeadProfile(spec));
  WINNOW_RETURN_IF_ERROR(ValidateSelection(spec));
  return spec;
}

}  // namespace winnow
