#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "common/model/synthetic_models.h"
#include "tools/plan/roofline.h"

namespace winnow {
namespace {

constexpr char kAbout[] =
    "What each placement of a model holds and how fast it can be at best, with the arithmetic. Nothing is loaded or\n"
    "measured: rates are an H200's by its datasheet unless given, and 85 to 92 % of them is what runs reach.\n";

struct PlanOptions {
  std::string model;
  double weight_bytes = 2;
  double kv_bytes = 2;
  int cache_gpus = 4;
  int batch = 0;
  bool json = false;
  GpuRates rates;
  PlanWorkload load;
  PlanScorer scorer;

  void Declare(Fields& fields) {
    fields.Folder(
        "model", &model,
        absl::StrCat("Folder of the model (config.json is enough), or ", SyntheticModelNames(), ". Required."));
    fields.Number("context", &load.context_tokens, "Tokens of each sequence.", 1, 1e8);
    fields.Integer("batch", &batch, "Sequences at once; 0 = as many as fit.", 0, 1'000'000);
    fields.Number("budget", &load.budget_tokens, "Tokens attended per position, all in all.", 1, 1e6);
    fields.Number("overlap", &load.overlap, "Share of a selection that is resident already.", 0, 1);
    fields.Number("weight-bytes", &weight_bytes, "Bytes per weight: 2 for bf16, 1 for fp8.", 0.25, 4);
    fields.Number("kv-bytes", &kv_bytes, "Bytes per element of K and V: 2 for bf16, 1 for fp8.", 0.25, 4);
    fields.Enum("scorer", &scorer.kind,
                {{"token", PlanScorer::Kind::kAllKeys},
                 {"pages", PlanScorer::Kind::kPages},
                 {"two-stage", PlanScorer::Kind::kTwoStage}},
                "How the cache ranks find rows: every key, bounds of pages, or bounds first and then keys.");
    fields.Number("key-bytes", &scorer.key_element_bytes,
                  "Bytes per element of the keys that are scored; 0.53 is int4.", 0.25, 4);
    fields.Integer("page-tokens", &scorer.page_tokens, "Keys of a page.", 1, 1024);
    fields.Integer("candidate-factor", &scorer.candidate_factor, "Two-stage: budgets of keys that are scored exactly.",
                   1, 64);
    fields.Integer("min-candidate-tokens", &scorer.min_candidate_tokens, "Two-stage: keys of those at least.", 0,
                   1 << 24);
    fields.Integer("score-all-below-tokens", &scorer.score_all_below_tokens,
                   "Two-stage: of shorter contexts every key is scored.", 0, 1 << 24);
    fields.Integer("cache-gpus", &cache_gpus, "Most cache GPUs per inference GPU to plan for.", 1, 64);
    fields.Number("hbm-bytes", &rates.hbm_bytes, "Memory of a GPU.", 1e9, 1e13);
    fields.Number("hbm-rate", &rates.hbm_bytes_per_s, "Its bandwidth, bytes/s.", 1e9, 1e14);
    fields.Number("flops", &rates.flops_per_s, "Its dense matrix rate, operations/s.", 1e9, 1e17);
    fields.Number("link-rate", &rates.link_bytes_per_s, "Link between GPUs, bytes/s in one direction.", 1e6, 1e13);
    fields.Bool("json", &json, "Print JSON.");
  }
};

std::vector<PlannedPlacement> Placements(const PlanOptions& options) {
  const PlanScorer all_keys{.kind = PlanScorer::Kind::kAllKeys, .key_element_bytes = options.kv_bytes};
  const PlanScorer pages{.kind = PlanScorer::Kind::kPages,
                         .key_element_bytes = options.kv_bytes,
                         .page_tokens = options.scorer.page_tokens};
  std::vector<PlannedPlacement> placements = {{.name = "dense", .dense = true, .scorer = all_keys},
                                              {.name = "colocated, every key", .scorer = all_keys},
                                              {.name = "colocated, pages", .scorer = pages}};
  for (int gpus = 1; gpus <= options.cache_gpus; ++gpus) {
    placements.push_back(
        {.name = absl::StrCat("1 inference + ", gpus, " cache"), .cache_gpus = gpus, .scorer = options.scorer});
  }
  return placements;
}

std::string Verdict(const PlacementPlan& plan, int batch) {
  if (plan.batch == 0) return "does not fit";
  if (batch > plan.fits) return absl::StrCat("only ", plan.fits, " fit");
  if (plan.cache_ratio > 1 && plan.cache_ratio >= plan.link_load) return "held up by the cache GPUs";
  if (plan.link_load > 1) return "held up by the link";
  return "";
}

absl::Status Run(const PlanOptions& options) {
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfigOf(options.model));
  const PlanModel model = PlanModelOf(config, options.weight_bytes, options.kv_bytes);
  std::vector<PlacementPlan> plans;
  for (const PlannedPlacement& placement : Placements(options)) {
    plans.push_back(Plan(model, options.rates, options.load, placement, options.batch));
  }
  if (options.json) {
    nlohmann::ordered_json out;
    for (const PlacementPlan& plan : plans) {
      out.push_back({{"placement", plan.placement.name},
                     {"fits", plan.fits},
                     {"batch", plan.batch},
                     {"step_ms", plan.step_s * 1e3},
                     {"tokens_per_s_per_gpu", plan.tokens_per_s_per_gpu},
                     {"cache_ratio", plan.cache_ratio},
                     {"link_load", plan.link_load},
                     {"verdict", Verdict(plan, options.batch)},
                     {"arithmetic", plan.arithmetic}});
    }
    std::printf("%s\n", out.dump(2).c_str());
    return absl::OkStatus();
  }
  std::printf("weights %.2f GB, of which a step reads %.2f GB; KV %.0f bytes per token\n\n", model.weight_bytes / 1e9,
              StepWeightBytes(model, 1) / 1e9, model.kv_token_bytes);
  for (const PlacementPlan& plan : plans) {
    std::printf("%s\n", plan.placement.name.c_str());
    for (size_t begin = 0; begin < plan.arithmetic.size();) {
      const size_t end = plan.arithmetic.find('\n', begin);
      std::printf("    %s\n", plan.arithmetic.substr(begin, end - begin).c_str());
      begin = end + 1;
    }
  }
  std::printf("\n%-24s %9s %8s %10s %14s %11s %10s\n", "", "sequences", "batch", "step ms", "tok/s per GPU",
              "cache busy", "link busy");
  for (const PlacementPlan& plan : plans) {
    std::printf("%-24s %9lld %8.0f %10.2f %14.0f %11.2f %10.2f  %s\n", plan.placement.name.c_str(),
                static_cast<long long>(plan.fits), plan.batch, plan.step_s * 1e3, plan.tokens_per_s_per_gpu,
                plan.cache_ratio, plan.link_load, Verdict(plan, options.batch).c_str());
  }
  return absl::OkStatus();
}

int PlanMain(const Arguments& arguments) {
  PlanOptions options;
  if (const std::optional<int> code = ParseCommandLine(kPlanCommand, arguments, options)) return *code;
  if (options.model.empty()) return Fail(kPlanCommand, absl::InvalidArgumentError("--model is required"), 2);
  const absl::Status status = Run(options);
  return status.ok() ? 0 : Fail(kPlanCommand, status);
}

}  // namespace

const Command kPlanCommand = {
    .name = "plan",
    .summary = "say what placements of a model hold and how fast they can be, with the arithmetic",
    .synopsis = "--model MODEL [--option=value ...]",
    .about = kAbout,
    .options = Declared<PlanOptions>,
    .run = PlanMain};

}  // namespace winnow
