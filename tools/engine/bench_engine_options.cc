#include "tools/engine/bench_engine_options.h"

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "common/model/synthetic_models.h"
#include "common/selection/presets.h"
#include "common/selection/spec_text.h"
#include "model/device/device_layers.h"
#include "tools/load/token_count.h"

namespace winnow {
namespace {

// The systems of the comparison, each as a full specification.
constexpr const char* kAllSelections = "dense; quest; sparseserve; hisparse; lserve; psa; async-token; winnow";

absl::Status Wrong(std::string_view option, std::string_view text, std::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("--", AbslSv(option), "=", AbslSv(text), ": ", AbslSv(expected)));
}

std::vector<std::string> Split(std::string_view list) {
  if (list.empty()) return {};
  return absl::StrSplit(AbslSv(list), ',');
}

absl::StatusOr<std::vector<int>> ParseInts(std::string_view option, std::string_view list, int low, int high) {
  std::vector<int> values;
  for (const std::string& text : Split(list)) {
    const absl::StatusOr<int64_t> value = ParseInt(text);
    if (!value.ok() || *value < low || *value > high) {
      return Wrong(option, list, absl::StrCat("a comma-separated list of numbers from ", low, " to ", high));
    }
    values.push_back(static_cast<int>(*value));
  }
  if (values.empty()) return Wrong(option, list, "is empty");
  return values;
}

absl::StatusOr<Dtype> ParseKv(std::string_view list, std::string_view name) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF8, Dtype::kI8, Dtype::kI4}) {
    if (name == DtypeName(dtype)) return dtype;
  }
  return Wrong("kv", list,
               absl::StrCat("a comma-separated list of ", DtypeName(Dtype::kBf16), ", ", DtypeName(Dtype::kF8), ", ",
                            DtypeName(Dtype::kI8), ", ", DtypeName(Dtype::kI4)));
}

}  // namespace

size_t BenchEnginePlan::num_gpus() const {
  return std::set<int>(devices.begin(), devices.end()).size();
}

void BenchEngineOptions::Declare(Fields& fields) {
  fields.Text("model", &model, "Shape of the model, whose weights are random: " + SyntheticModelNames() + ".");
  fields.Text("context", &context,
              "Tokens of every sequence before the timed steps, such as 32k or 1m; several, separated by commas, are "
              "measured one "
              "by one.");
  fields.Text("batch", &batch,
              "Sequences of a step, 1 to 64, or max for as many as fit; "
              "several, separated by commas, are measured one by one.");
  fields.Text("mode", &mode,
              "What a step attends to: dense (everything), fixed (a selection that never changes and costs nothing), "
              "colocated (selected on the same GPU and attended to where it lies), colocated-dram (rows in the host's "
              "DRAM, what was selected lately in HBM), disaggregated (stored and selected on another of --devices); "
              "several, separated by commas, are measured one by one.");
  fields.Text("selections", &selections,
              "Selections to measure in every mode but fixed, in place of what the options below describe, separated "
              "by semicolons: presets, also with fields (winnow,scorer=two-stage), or all for those of published "
              "systems. Each has --budget rows.");
  fields.Text("devices", &devices,
              "GPUs: the inference ranks', then, for disaggregated, as "
              "many of cache ranks beside them, which may be the same.");
  fields.Text("tp", &tensor_parallel,
              "GPUs that hold the model together: 1, 2 or 4; several, one after the other. "
              "Prefill is measured with 1 alone.");
  fields.Enum("predictor", &predictor,
              {{"depth", Predictor::kDepth},
               {"temporal", Predictor::kTemporal},
               {"last", Predictor::kLast},
               {"exact", Predictor::kExact}},
              "Which query selects: that of the residual some layers earlier, "
              "a blend of past ones, the last one, or the position's own.");
  fields.Enum("scorer", &scorer,
              {{"token", Scorer::kToken}, {"two-stage", Scorer::kTwoStage}, {"page", Scorer::kPageMinmax}},
              "Which keys are scored: all, those of the best pages, or pages alone.");
  fields.Integer<uint32_t>("lookahead", &lookahead, "Layers that --predictor=depth looks ahead.", 1, 8);
  fields.Integer<uint32_t>("budget", &budget, "Rows selected for each kv head.", 1, 65536);
  fields.Number("overlap", &overlap,
                "Share of a selection that the one before held: the generated queries are tuned until what is measured "
                "lies within 0.02 of it.",
                0.05, 0.98);
  fields.Number("pool-factor", &pool_factor, "Slots of a kv head's pool, in budgets.", 1, 16);
  fields.Enum("weights", &weights, {{"bf16", Dtype::kBf16}, {"fp8", Dtype::kF8}}, "Type of the weight matrices.");
  fields.Text(
      "kv", &kv,
      "Types of the rows that attention reads: bf16, fp8, int8 or int4; several, one by one. Others than bf16 are "
      "for dense, fixed, and for --selections with everything colocated in HBM: cache ranks send bf16. Of int8 the "
      "rows' own keys are scored, of fp8 and int4 a copy of them in fp8.");
  fields.Enum("keys", &keys, {{"bf16", Dtype::kBf16}, {"fp8", Dtype::kF8}},
              "What the scorer reads: the keys, or a copy of them in fp8.");
  fields.Text(
      "prefill", &prefill,
      "Prompt lengths to time prefill of, alone and with every row saved in DRAM, such as 8k,32k; empty: none.");
  fields.File("quality", &quality,
              "A summary.csv of selection_quality: the table says beside each selection what it costs in answers.");
  fields.Integer("chunk", &chunk_tokens, "Tokens of a prefill chunk.", 64, 32768);
  fields.Bool("breakdown", &breakdown, "Also time every part of a step, alone and left out.");
  fields.Integer("seed", &seed, "Of weights, keys and values.");
  fields.File("out", &out, "File for the results as JSON; empty: none.");
}

absl::StatusOr<BenchEnginePlan> ReadBenchEngineOptions(const BenchEngineOptions& options) {
  BenchEnginePlan plan;
  for (const std::string& text : Split(options.context)) {
    WINNOW_ASSIGN_OR_RETURN(plan.contexts.emplace_back(), ParseTokenCount(text));
  }
  if (plan.contexts.empty()) return Wrong("context", options.context, "is empty");
  for (const std::string& text : Split(options.batch)) {
    if (text == "max") {
      plan.batches.push_back(BenchEnginePlan::kGreatestBatch);
      continue;
    }
    WINNOW_ASSIGN_OR_RETURN(const std::vector<int> batch, ParseInts("batch", text, 1, kMaxGraphRows));
    plan.batches.push_back(batch[0]);
  }
  if (plan.batches.empty()) return Wrong("batch", options.batch, "is empty");
  WINNOW_ASSIGN_OR_RETURN(plan.devices, ParseInts("devices", options.devices, 0, 63));
  WINNOW_ASSIGN_OR_RETURN(plan.num_ranks, ParseInts("tp", options.tensor_parallel, 1, 4));
  const int most_ranks = *std::max_element(plan.num_ranks.begin(), plan.num_ranks.end());
  for (const int ranks : plan.num_ranks) {
    if (ranks == 3) return Wrong("tp", options.tensor_parallel, "1, 2 or 4");
  }
  for (const std::string& name : Split(options.kv)) {
    WINNOW_ASSIGN_OR_RETURN(plan.kv.emplace_back(), ParseKv(options.kv, name));
  }
  if (plan.kv.empty()) return Wrong("kv", options.kv, "is empty");
  for (const std::string& name : Split(options.mode)) {
    const absl::StatusOr<KvPlacement> placement = ParsePlacement(name);
    if (!placement.ok()) return Wrong("mode", options.mode, StdSv(placement.status().message()));
    const size_t needed = most_ranks * (*placement == KvPlacement::kDisaggregated ? size_t{2} : size_t{1});
    if (plan.devices.size() < needed) {
      return Wrong("devices", options.devices,
                   absl::StrCat(PlacementName(*placement), " with --tp=", most_ranks, " takes ", needed,
                                " GPUs: those of the inference ranks, then those of the cache ranks"));
    }
    plan.placements.push_back(*placement);
  }
  for (const std::string& text : Split(options.prefill)) {
    WINNOW_ASSIGN_OR_RETURN(plan.prefill_tokens.emplace_back(), ParseTokenCount(text));
  }
  const std::string selections = options.selections == "all" ? kAllSelections : options.selections;
  for (const absl::string_view text : absl::StrSplit(selections, ';', absl::SkipWhitespace())) {
    plan.selections.emplace_back(absl::StripAsciiWhitespace(text));
    const absl::StatusOr<SelectionSpec> spec = ParseSpec(plan.selections.back());
    if (!spec.ok()) return Wrong("selections", options.selections, StdSv(spec.status().message()));
  }
  WINNOW_ASSIGN_OR_RETURN(plan.spec, FindPreset("depth"));
  plan.spec.predictor = options.predictor;
  plan.spec.lookahead = options.lookahead;
  plan.spec.prefetch = Prefetch::kNone;
  plan.spec.scorer = options.scorer;
  plan.spec.key_copy = options.keys == Dtype::kF8 ? KeyCopy::kInt8 : KeyCopy::kNone;
  plan.spec.budget_tokens = options.budget;
  plan.spec.pool_factor = static_cast<float>(options.pool_factor);
  plan.spec.projection = Projection::kCacheRank;
  const uint64_t attended = uint64_t{plan.spec.sink_tokens} + options.budget + plan.spec.recent_tokens + 32;
  const uint32_t shortest = *std::min_element(plan.contexts.begin(), plan.contexts.end());
  if (attended > shortest) {
    return Wrong("budget", absl::StrCat(options.budget),
                 absl::StrCat("with sinks and recent window that is all of a context of ", shortest));
  }
  return plan;
}

}  // namespace winnow
