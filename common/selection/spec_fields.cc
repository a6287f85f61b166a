#include "common/selection/spec_fields.h"

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/nearest_name.h"

namespace winnow {
namespace {

template <auto kMember>
ChoiceValue Choice(std::vector<FieldChoice> choices) {
  using Enum = std::remove_reference_t<decltype(std::declval<SelectionSpec&>().*kMember)>;
  return {.get = [](const SelectionSpec& spec) { return static_cast<size_t>(spec.*kMember); },
          .set = [](SelectionSpec& spec, size_t index) { spec.*kMember = static_cast<Enum>(index); },
          .choices = std::move(choices)};
}

IntegerValue Integer(uint32_t SelectionSpec::*member, uint32_t low, uint32_t high) {
  return {.member = member, .low = low, .high = high};
}

IntegerValue OneOf(uint32_t SelectionSpec::*member, std::vector<uint32_t> only) {
  return {.member = member, .only = std::move(only)};
}

constexpr std::string_view kBasePaper = "asynchronous KV disaggregation (the base paper)";

std::vector<SelectionField> PredictorFields() {
  return {
      {.name = "predictor",
       .value = Choice<&SelectionSpec::predictor>({
           {"dense", "no selection: every row is attended", "all rows resident, all of them read in every step"},
           {"exact", "the position's own query", "attention waits for query, scoring and transfer",
            "Quest, LServe, PSA"},
           {"last", "the query of the position before", "answers that follow links through the text break"},
           {"temporal", "a blend of the queries of the last positions",
            "answers that follow links through the text break", kBasePaper},
           {"depth", "the position's own query, computed from the residual some layers early",
            "reads Wq twice, +7.5 % of a 14B step at batch 1"},
           {"fixed", "no query: the first rows after the sinks, always", "nothing; to time others against"},
       }),
       .meaning = "whose query the keys are scored with",
       .per_request = true},
      {.name = "window",
       .value = Integer(&SelectionSpec::window, 2, 32),
       .meaning = "temporal: past queries that are blended",
       .cost = "window + 1 queries per layer and head kept with the sequence, a small least-squares problem each step",
       .source = kBasePaper,
       .per_request = true},
      {.name = "variant",
       .value = Choice<&SelectionSpec::temporal_variant>({
           {"softmax", "softmaxed least squares, nearly a uniform average", "", kBasePaper},
           {"ridge", "ridge regression as it is", ""},
           {"clipped", "ridge weights clipped at 0 and normalised", ""},
       }),
       .meaning = "temporal: weights of the past queries",
       .per_request = true},
      {.name = "post_rope",
       .value = BoolValue{&SelectionSpec::post_rope},
       .meaning = "temporal: blend queries after RoPE instead of before it",
       .cost = "true caps the cosine with the real query at 0.90 to 0.92 for a window of 8",
       .source = kBasePaper,
       .per_request = true},
      {.name = "lookahead",
       .value = Integer(&SelectionSpec::lookahead, 1, 8),
       .meaning = "depth: layers between prediction and use",
       .cost = "each layer more hides more scoring and transfer and loses about a point of captured mass",
       .source = "InfiniGen; an option of ArkVale"},
      {.name = "projection",
       .value = Choice<&SelectionSpec::projection>({
           {"inference-rank", "the inference rank multiplies the residual with Wq", "Wq is read twice there"},
           {"cache-rank", "the cache rank does, with weights of its own", "it loads Wq and norms of the model"},
       }),
       .meaning = "depth: where the query is computed"},
      {.name = "prefetch",
       .value = Choice<&SelectionSpec::prefetch>({
           {"none", "rows move when they are selected", ""},
           {"temporal", "rows that a temporal prediction selects move into the pool ahead of time",
            "bytes for rows that are not selected after all"},
       }),
       .meaning = "rows moved early; changes what is resident, never what is selected"},
  };
}

std::vector<SelectionField> ScorerFields() {
  return {
      {.name = "scorer",
       .value = Choice<&SelectionSpec::scorer>({
           {"token", "every key", "reads every key in every step", kBasePaper},
           {"page-minmax", "pages, by an upper bound from the minima and maxima of their keys",
            "reads 2 / page_tokens of the keys; whole pages fill the budget", "Quest"},
           {"page-cuboid", "pages, by the same of a smaller box: as far from its middle as keys lie in the mean",
            "as page-minmax", "ArkVale, SparseServe, PSA"},
           {"hierarchical", "physical pages, by the best bound among their logical pages", "as page-minmax", "LServe"},
           {"two-stage", "page bounds leave some budgets of keys, which are then scored one by one",
            "a few answers of pointer chases; far fewer keys read than by token"},
           {"indexer", "the model's own indexer, of index keys; no sinks and no recent window",
            "only for models that "
            "bring one; reads every index key",
            "DeepSeek Sparse Attention, HiSparse"},
       }),
       .meaning = "what is scored",
       .per_request = true},
      {.name = "page_tokens",
       .value = OneOf(&SelectionSpec::page_tokens, {16, 32, 64}),
       .meaning = "page scorers: keys of a page; hierarchical: of a logical page",
       .cost = "larger pages read fewer bounds and waste more of the budget",
       .source = "Quest 16, SparseServe 32",
       .per_request = true},
      {.name = "physical_page_tokens",
       .value = OneOf(&SelectionSpec::physical_page_tokens, {16, 32, 64}),
       .meaning = "hierarchical: keys of a physical page, a multiple of page_tokens",
       .cost = "whole pages of this size fill the budget",
       .source = "LServe",
       .per_request = true},
      {.name = "candidate_factor",
       .value = Integer(&SelectionSpec::candidate_factor, 1, 64),
       .meaning = "two-stage: keys that the first stage leaves, in budgets",
       .cost = "more keys read, fewer rows missed",
       .per_request = true},
      {.name = "min_candidate_tokens",
       .value = Integer(&SelectionSpec::min_candidate_tokens, 0, 1u << 24),
       .meaning = "two-stage: keys that the first stage leaves at least, however small the budget",
       .cost = "more keys read with small budgets, which lose answers to page bounds otherwise",
       .per_request = true},
      {.name = "score_all_below_tokens",
       .value = Integer(&SelectionSpec::score_all_below_tokens, 0, 1u << 24),
       .meaning = "two-stage: with fewer selectable rows than these every key is scored",
       .cost = "reads every key up to that length",
       .per_request = true},
      {.name = "group_candidate_tokens",
       .value = Integer(&SelectionSpec::group_candidate_tokens, 0, 1u << 24),
       .meaning =
           "two-stage: of contexts that have more, the bounds of groups of 16 pages leave groups of so many rows, "
           "whose pages are then told apart by their own bounds; 0: the bounds of every page are read",
       .cost = "fewer pages missed, more bounds read: with 0 they grow with the context",
       .per_request = true},
      {.name = "key_copy",
       .value = Choice<&SelectionSpec::key_copy>({
           {"none", "scores are computed from the keys", ""},
           {"int8", "from a copy of the keys in 8 bits", "halves what scoring reads; scores carry rounding errors"},
           {"int4", "from one in 4 bits",
            "a quarter of what scoring reads; scores err by several percent, captured mass is measured from the same "
            "keys, so that no verification can rest on it"},
       }),
       .meaning = "what scorers read",
       .per_request = true},
      {.name = "group_aggregation",
       .value = Choice<&SelectionSpec::group_aggregation>({
           {"softmax-sum", "softmax of each query head, summed", "a second pass over the scores"},
           {"max", "the largest raw score", ""},
           {"mean", "the mean raw score", ""},
       }),
       .meaning = "how the query heads of a kv head agree on one list",
       .per_request = true},
      {.name = "list_per",
       .value = Choice<&SelectionSpec::list_per>({
           {"kv-head", "one list for the query heads of a kv head", ""},
           {"query-head", "a list for each query head, from its own query; each of them has the budget",
            "up to as many times the rows, resident and moved, as a group has heads; excludes correction", "LServe"},
       }),
       .meaning = "heads that share a list"},
  };
}

std::vector<SelectionField> PolicyFields() {
  return {
      {.name = "policy",
       .value = Choice<&SelectionSpec::policy>({
           {"top-k", "the best rows or pages, as many as the budget holds", ""},
           {"mass", "the best ones until 1 - epsilon of the mass is held, at most the budget",
            "fewer rows where attention is narrow", "PSA"},
       }),
       .meaning = "how many of the scored rows are taken",
       .per_request = true},
      {.name = "epsilon",
       .value = NumberValue{&SelectionSpec::epsilon, 0, 1},
       .meaning = "mass policy: share of the softmax mass that may be missed",
       .cost = "smaller takes more rows",
       .source = "PSA",
       .per_request = true},
      {.name = "stop_rule",
       .value = Choice<&SelectionSpec::stop_rule>({
           {"estimate", "trusts the order of the page scores", "may stop too early", "PSA, Algorithm 1"},
           {"bound", "holds whatever the pages not read contain", "reads more pages"},
       }),
       .meaning = "when the mass policy stops",
       .per_request = true},
      {.name = "budget",
       .value = IntegerValue{.member = &SelectionSpec::budget_tokens,
                             .low = 1,
                             .high = kUnlimitedBudget - 1,
                             .may_be_unlimited = true},
       .meaning = "most selected rows per list, sinks and recent rows not counted",
       .cost = "resident memory and rows read by attention grow with it; captured mass too",
       .per_request = true},
      {.name = "head_budgets",
       .value = ProfileValue{},
       .meaning = "budgets by layer and kv head; 0 makes a head stream, with sinks and recent rows only",
       .cost = "none with the same sum: rows go to the heads whose captured mass they raise most",
       .source = "LServe's streaming heads, DuoAttention"},
      {.name = "profile_use",
       .value = Choice<&SelectionSpec::profile_use>({
           {"none", "every head has the budget", ""},
           {"budgets", "the sum of all budgets is shared out by what rows add to each head's captured mass", ""},
           {"streaming", "heads that sinks and recent rows are enough for get nothing else, the others the budget", "",
            "LServe, DuoAttention"},
           {"budgets-and-streaming", "both", ""},
       }),
       .meaning = "what the server's head profile decides; all but none need one (--head-profile)",
       .per_request = true},
      {.name = "sinks",
       .value = Integer(&SelectionSpec::sink_tokens, 0, 4096),
       .meaning = "first positions, always attended",
       .cost = "resident memory",
       .source = "StreamingLLM"},
      {.name = "recent",
       .value = Integer(&SelectionSpec::recent_tokens, 1, 65536),
       .meaning = "newest positions, always attended; the window begins at a block boundary, so up to 31 more",
       .cost = "resident memory"},
      {.name = "dense_below_tokens",
       .value = Integer(&SelectionSpec::dense_below_tokens, 0, 1u << 24),
       .meaning = "positions below this one attend to everything: where contexts are so short that finding rows takes "
                  "longer than reading all of them",
       .cost = "resident memory for as many rows, unless rows are selected in place"},
      {.name = "reuse_interval",
       .value = Integer(&SelectionSpec::reuse_interval, 1, 16),
       .meaning = "positions that share a selection",
       .cost = "divides scoring and transfer; what positions between the anchors ask for is missed",
       .source = "LServe"},
  };
}

std::vector<SelectionField> ResidencyAndQualityFields() {
  return {
      {.name = "pool_factor",
       .value = NumberValue{&SelectionSpec::pool_factor, 1, 64},
       .meaning = "rows kept resident around the selection, in budgets; never changes the output",
       .cost = "resident memory, for fewer rows that travel",
       .source = "HiSparse's hot buffer"},
      {.name = "transfer",
       .value = Choice<&SelectionSpec::transfer>({
           {"delta", "rows of a selection that are not resident", ""},
           {"full", "all rows of a selection, every time", "three to four times the bytes", kBasePaper},
       }),
       .meaning = "rows that travel"},
      {.name = "correction",
       .value = Choice<&SelectionSpec::correction>({
           {"none", "the prediction stands", ""},
           {"remote",
            "the cache rank attends to the top-k rows that the prediction missed and sends the partial result",
            "attention waits for the verification with the real query"},
       }),
       .meaning = "what is done about rows that the real query would have selected",
       .per_request = true},
      {.name = "min_captured_mass",
       .value = NumberValue{&SelectionSpec::min_captured_mass, 0, 1},
       .meaning = "quality guard: heads that hold less of the softmax mass are corrected; 0 only measures",
       .cost = "attention waits for the verification; remote attention for the heads below it",
       .per_request = true},
      {.name = "budget_growth",
       .value = OneOf(&SelectionSpec::budget_growth, {1, 2, 4, 8}),
       .meaning = "quality guard: factor up to which a head's budget may grow",
       .cost = "slots for the grown budget are set aside",
       .per_request = true},
  };
}

const std::vector<SelectionField>& AllFields() {
  static const std::vector<SelectionField> fields = [] {
    std::vector<SelectionField> all = PredictorFields();
    for (const auto& part : {ScorerFields(), PolicyFields(), ResidencyAndQualityFields()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return fields;
}

}  // namespace

std::span<const SelectionField> SelectionFields() {
  return AllFields();
}

absl::StatusOr<const SelectionField*> FindField(std::string_view name) {
  const std::string wanted = absl::StrReplaceAll(AbslSv(name.substr(0, 64)), {{"-", "_"}});
  std::vector<std::string_view> names;
  for (const SelectionField& field : AllFields()) {
    if (field.name == wanted) return &field;
    names.push_back(field.name);
  }
  const std::string_view nearest = NearestName(wanted, names);
  const std::string hint =
      nearest.empty()
          ? absl::StrCat("; there are: ",
                         absl::StrJoin(names, ", ", [](std::string* out, std::string_view n) { out->append(n); }))
          : absl::StrCat("; did you mean \"", AbslSv(nearest), "\"?");
  return SpecError(wanted, absl::StrCat("is no field of a selection", hint));
}

}  // namespace winnow
