#include "common/selection/selection_proto.h"

#include "common/selection/validate.h"

namespace winnow {
namespace {

// Enumerations of the record begin at 0, those of the protocol have UNSPECIFIED there.
template <typename Proto, typename Enum>
Proto Out(Enum value) {
  return static_cast<Proto>(static_cast<int>(value) + 1);
}

class EnumReader {
 public:
  template <typename Enum, typename Proto>
  void Read(std::string_view field, Proto value, Enum last, Enum* out) {
    const int index = static_cast<int>(value) - 1;
    if (index >= 0 && index <= static_cast<int>(last)) {
      *out = static_cast<Enum>(index);
    } else if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("selection.", AbslSv(field), " is not set or not known to this version"));
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

}  // namespace

v1::SelectionSpec ToProto(const SelectionSpec& spec) {
  v1::SelectionSpec proto;
  proto.set_preset(spec.preset);
  proto.set_predictor(Out<v1::Predictor>(spec.predictor));
  proto.set_window(spec.window);
  proto.set_temporal_variant(Out<v1::TemporalVariant>(spec.temporal_variant));
  proto.set_post_rope(spec.post_rope);
  proto.set_lookahead(spec.lookahead);
  proto.set_projection(Out<v1::Projection>(spec.projection));
  proto.set_prefetch(Out<v1::Prefetch>(spec.prefetch));
  proto.set_scorer(Out<v1::Scorer>(spec.scorer));
  proto.set_page_tokens(spec.page_tokens);
  proto.set_physical_page_tokens(spec.physical_page_tokens);
  proto.set_candidate_factor(spec.candidate_factor);
  proto.set_min_candidate_tokens(spec.min_candidate_tokens);
  proto.set_score_all_below_tokens(spec.score_all_below_tokens);
  proto.set_group_candidate_tokens(spec.group_candidate_tokens);
  proto.set_dense_below_tokens(spec.dense_below_tokens);
  proto.set_key_copy(Out<v1::KeyCopy>(spec.key_copy));
  proto.set_group_aggregation(Out<v1::GroupAggregation>(spec.group_aggregation));
  proto.set_list_per(Out<v1::ListPer>(spec.list_per));
  proto.set_policy(Out<v1::Policy>(spec.policy));
  proto.set_epsilon(spec.epsilon);
  proto.set_stop_rule(Out<v1::StopRule>(spec.stop_rule));
  proto.set_budget_tokens(spec.budget_tokens == kUnlimitedBudget ? 0 : spec.budget_tokens);
  for (uint32_t budget : spec.head_budgets) proto.add_head_budgets(budget);
  proto.set_profile_use(Out<v1::ProfileUse>(spec.profile_use));
  proto.set_sink_tokens(spec.sink_tokens);
  proto.set_recent_tokens(spec.recent_tokens);
  proto.set_reuse_interval(spec.reuse_interval);
  proto.set_pool_factor(spec.pool_factor);
  proto.set_transfer(Out<v1::Transfer>(spec.transfer));
  proto.set_correction(Out<v1::Correction>(spec.correction));
  proto.set_min_captured_mass(spec.min_captured_mass);
  proto.set_budget_growth(spec.budget_growth);
  return proto;
}

absl::StatusOr<SelectionSpec> FromProto(const v1::SelectionSpec& proto) {
  SelectionSpec spec{.preset = proto.preset(),
                     .window = proto.window(),
                     .post_rope = proto.post_rope(),
                     .lookahead = proto.lookahead(),
                     .page_tokens = proto.page_tokens(),
                     .physical_page_tokens = proto.physical_page_tokens(),
                     .candidate_factor = proto.candidate_factor(),
                     .min_candidate_tokens = proto.min_candidate_tokens(),
                     .score_all_below_tokens = proto.score_all_below_tokens(),
                     .group_candidate_tokens = proto.group_candidate_tokens(),
                     .dense_below_tokens = proto.dense_below_tokens(),
                     .epsilon = proto.epsilon(),
                     .budget_tokens = proto.budget_tokens() == 0 ? kUnlimitedBudget : proto.budget_tokens(),
                     .head_budgets = {proto.head_budgets().begin(), proto.head_budgets().end()},
                     .sink_tokens = proto.sink_tokens(),
                     .recent_tokens = proto.recent_tokens(),
                     .reuse_interval = proto.reuse_interval(),
                     .pool_factor = proto.pool_factor(),
                     .min_captured_mass = proto.min_captured_mass(),
                     .budget_growth = proto.budget_growth()};
  EnumReader reader;
  reader.Read("predictor", proto.predictor(), Predictor::kFixed, &spec.predictor);
  reader.Read("temporal_variant", proto.temporal_variant(), TemporalVariant::kClipped, &spec.temporal_variant);
  reader.Read("projection", proto.projection(), Projection::kCacheRank, &spec.projection);
  reader.Read("prefetch", proto.prefetch(), Prefetch::kTemporal, &spec.prefetch);
  reader.Read("scorer", proto.scorer(), Scorer::kIndexer, &spec.scorer);
  reader.Read("key_copy", proto.key_copy(), KeyCopy::kInt4, &spec.key_copy);
  reader.Read("group_aggregation", proto.group_aggregation(), GroupAggregation::kMean, &spec.group_aggregation);
  reader.Read("list_per", proto.list_per(), ListPer::kQueryHead, &spec.list_per);
  reader.Read("policy", proto.policy(), Policy::kMass, &spec.policy);
  reader.Read("stop_rule", proto.stop_rule(), StopRule::kBound, &spec.stop_rule);
  reader.Read("profile_use", proto.profile_use(), ProfileUse::kBudgetsAndStreaming, &spec.profile_use);
  reader.Read("transfer", proto.transfer(), Transfer::kFull, &spec.transfer);
  reader.Read("correction", proto.correction(), Correction::kRemote, &spec.correction);
  WINNOW_RETURN_IF_ERROR(reader.status());
  WINNOW_RETURN_IF_ERROR(ValidateSelection(spec));
  return spec;
}

}  // namespace winnow
