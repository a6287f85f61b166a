#include "common/selection/presets.h"

#include <array>

namespace winnow {
namespace {

const std::array<SelectionPreset, 4>& AllPresets() {
  static const std::array<SelectionPreset, 4> presets = {{
      {.spec = {.preset = "winnow", .predictor = Predictor::kDepth, .lookahead = 1},
       .description = "queries predicted one layer ahead from the residual stream, every key scored, top-k (default)"},
      {.spec = {.preset = "async-token",
                .predictor = Predictor::kTemporal,
                .window = 8,
                .temporal_variant = TemporalVariant::kSoftmax,
                .post_rope = true},
       .description = "queries predicted from past queries by softmaxed least squares, every key scored, top-k"},
      {.spec = {.preset = "exact-token", .predictor = Predictor::kExact},
       .description = "waits for the real query, every key scored, top-k: the oracle of token selection"},
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
  std::string names;
  if (name == "depth") name = "winnow";
  for (const SelectionPreset& preset : AllPresets()) {
    if (preset.spec.preset == name) return preset.spec;
    absl::StrAppend(&names, names.empty() ? "" : ", ", preset.spec.preset);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown selection preset \"", AbslSv(name), "\"; there are: ", names));
}

absl::Status ValidateSelection(const SelectionSpec& spec) {
  auto out_of_range = [](std::string_view field, double value, double low, double high) {
    return absl::InvalidArgumentError(
        absl::StrCat("selection.", AbslSv(field), " is ", value, ", outside [", low, ", ", high, "]"));
  };
  if (spec.window < 2 || spec.window > 32) return out_of_range("window", spec.window, 2, 32);
  if (spec.lookahead < 1 || spec.lookahead > 8) return out_of_range("lookahead", spec.lookahead, 1, 8);
  if (spec.budget_tokens < 1) return out_of_range("budget", spec.budget_tokens, 1, kUnlimitedBudget);
  if (spec.sink_tokens > 4096) return out_of_range("sinks", spec.sink_tokens, 0, 4096);
  if (spec.recent_tokens < 1 || spec.recent_tokens > 65536) return out_of_range("recent", spec.recent_tokens, 1, 65536);
  if (!(spec.pool_factor >= 1 && spec.pool_factor <= 64)) return out_of_range("pool_factor", spec.pool_factor, 1, 64);
  return absl::OkStatus();
}

v1::SelectionSpec ToProto(const SelectionSpec& spec) {
  v1::SelectionSpec proto;
  proto.set_preset(spec.preset);
  proto.set_predictor(static_cast<v1::Predictor>(static_cast<int>(spec.predictor) + 1));
  proto.set_window(spec.window);
  proto.set_temporal_variant(static_cast<v1::TemporalVariant>(static_cast<int>(spec.temporal_variant) + 1));
  proto.set_post_rope(spec.post_rope);
  proto.set_lookahead(spec.lookahead);
  proto.set_scorer(static_cast<v1::Scorer>(static_cast<int>(spec.scorer) + 1));
  proto.set_policy(static_cast<v1::Policy>(static_cast<int>(spec.policy) + 1));
  proto.set_group_aggregation(static_cast<v1::GroupAggregation>(static_cast<int>(spec.group_aggregation) + 1));
  proto.set_budget_tokens(spec.budget_tokens == kUnlimitedBudget ? 0 : spec.budget_tokens);
  proto.set_sink_tokens(spec.sink_tokens);
  proto.set_recent_tokens(spec.recent_tokens);
  proto.set_pool_factor(spec.pool_factor);
  return proto;
}

absl::StatusOr<SelectionSpec> FromProto(const v1::SelectionSpec& proto) {
  auto bad = [](std::string_view field) {
    return absl::InvalidArgumentError(
        absl::StrCat("selection.", AbslSv(field), " is not set or not known to this version"));
  };
  if (proto.predictor() < v1::PREDICTOR_DENSE || proto.predictor() > v1::PREDICTOR_DEPTH) return bad("predictor");
  if (proto.temporal_variant() < 1 || proto.temporal_variant() > 3) return bad("temporal_variant");
  if (proto.scorer() != v1::SCORER_TOKEN) return bad("scorer");
  if (proto.policy() != v1::POLICY_TOP_K) return bad("policy");
  if (proto.group_aggregation() < 1 || proto.group_aggregation() > 3) return bad("group_aggregation");
  SelectionSpec spec{.preset = proto.preset(),
                     .predictor = static_cast<Predictor>(proto.predictor() - 1),
                     .window = proto.window(),
                     .temporal_variant = static_cast<TemporalVariant>(proto.temporal_variant() - 1),
                     .post_rope = proto.post_rope(),
                     .lookahead = proto.lookahead(),
                     .scorer = Scorer::kToken,
                     .policy = Policy::kTopK,
                     .group_aggregation = static_cast<GroupAggregation>(proto.group_aggregation() - 1),
                     .budget_tokens = proto.budget_tokens() == 0 ? kUnlimitedBudget : proto.budget_tokens(),
                     .sink_tokens = proto.sink_tokens(),
                     .recent_tokens = proto.recent_tokens(),
                     .pool_factor = proto.pool_factor()};
  WINNOW_RETURN_IF_ERROR(ValidateSelection(spec));
  return spec;
}

}  // namespace winnow
