// winnow plan: what fits, how fast it will be, and with what to start.
#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/manifest/manifest.h"
#include "cmd/plan/placement_report.h"
#include "cmd/role/options/inference_options.h"
#include "cmd/role/options/model_options.h"
#include "common/base/json.h"
#include "common/model/synthetic_models.h"

namespace winnow {
namespace {

constexpr char kPlanAbout[] =
    "What placements of a model hold and how fast they are expected to be, with the arithmetic, and which to start\n"
    "with; or, of a manifest, whether exactly that fits this machine. Memory is worked out by the functions that "
    "ranks\n"
    "start by: what a plan says fits starts, and what it says does not is refused with the same figures. Nothing is\n"
    "loaded. Times are estimates from rates: of GPUs by their datasheets, of CPUs as measured here.\n";

// Sequences that a plan without --batch lets run at once, where more would fit.
constexpr uint32_t kMostRunning = 256;

struct PlanOptions {
  std::string model;
  std::string file;
  std::string node;
  uint32_t context = 0;
  uint32_t batch = 0;
  uint32_t cached = 0;
  double overlap = PlannedLoad().overlap;
  SelectionOptions selection;
  Dtype compute = Dtype::kBf16;
  Dtype kv_dtype = Dtype::kBf16;
  int tensor_parallel = 0;
  int cache_gpus = 4;
  MachineOptions machine;
  bool json = false;

  void Declare(Fields& fields) {
    fields.Folder("model", &model,
                  absl::StrCat("Folder of the model (config.json is enough), or ", SyntheticModelNames(),
                               ". Required without a manifest."));
    fields.File("file", &file, "Manifest whose placement is planned instead; -f FILE for short.");
    fields.Text("node", &node, "With a manifest that has nodes: the one whose part is planned.");
    fields.Integer("context", &context,
                   "Tokens of each sequence, prompt and answer; 0 = 32768, or the longest where that is less.", 0u,
                   1u << 24);
    fields.Integer("batch", &batch, "Sequences at once; 0 = as many as fit.", 0u, 1u << 20);
    fields.Integer("cached", &cached, "Tokens of each prompt that come from the prefix cache.", 0u, 1u << 24);
    fields.Number("overlap", &overlap, "Share of a selection that is resident already.", 0, 1);
    selection.Declare(fields);
    DeclareCompute(fields, &compute);
    DeclareKvDtype(fields, &kv_dtype);
    fields.Integer("tensor-parallel", &tensor_parallel, "GPUs that share the model: 1, 2 or 4; 0 = as few as hold it.",
                   0, 4);
    fields.Integer("cache-gpus", &cache_gpus, "Most cache GPUs beside those that compute to plan for.", 1, 64);
    machine.Declare(fields);
    fields.Bool("json", &json, "Print JSON.");
  }
};

struct PlanResult {
  PlannedMachine machine;
  PlannedLoad load;
  std::vector<PlacementReport> reports;
  std::vector<std::string> left_out;
  const PlacementReport* best = nullptr;  // of reports
  std::string command;                    // to start it with
};

uint32_t ContextOf(uint32_t wanted, uint32_t longest) {
  return wanted > 0 ? wanted : std::min<uint32_t>(PlannedLoad().context_tokens, longest);
}

absl::StatusOr<PlanResult> PlanManifest(const PlanOptions& options) {
  PlanResult result;
  WINNOW_ASSIGN_OR_RETURN(const Manifest manifest, LoadManifest(options.file));
  WINNOW_ASSIGN_OR_RETURN(const UpOptions up, manifest.OptionsOf(options.node));
  if (up.num_inference_ranks() == 0 && up.cache_ranks == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("no ranks run on node ", options.node, ": there is nothing to plan"));
  }
  WINNOW_RETURN_IF_ERROR(up.Validate());
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfigOf(up.model));
  WINNOW_ASSIGN_OR_RETURN(result.machine, DescribeMachine(options.machine));
  const auto longest = static_cast<uint32_t>(
      up.max_context > 0 ? up.max_context : std::min<int64_t>(config.max_context_tokens, 1 << 24));
  result.load = {ContextOf(options.context, longest), options.batch, options.cached, options.overlap};
  WINNOW_ASSIGN_OR_RETURN(PlacementReport report, ReportPlacement(options.file, up, result.machine, result.load));
  result.reports.push_back(std::move(report));
  if (result.reports[0].fits()) result.best = &result.reports[0];
  result.command = absl::StrCat("winnow up -f ", options.file, options.node.empty() ? "" : " --node " + options.node);
  return result;
}

absl::StatusOr<PlanResult> PlanPlacements(const PlanOptions& options) {
  PlanResult result;
  WINNOW_RETURN_IF_ERROR(CheckModelOption(options.model));
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfigOf(options.model));
  WINNOW_ASSIGN_OR_RETURN(result.machine, DescribeMachine(options.machine));
  const auto longest = static_cast<uint32_t>(std::min<int64_t>(config.max_context_tokens, 1 << 24));
  result.load = {ContextOf(options.context, longest), options.batch, options.cached, options.overlap};
  UpOptions base;
  base.model = options.model;
  base.selection = options.selection;
  base.compute = options.compute;
  base.kv_dtype = options.kv_dtype;
  base.max_context = result.load.context_tokens;
  base.max_running = options.batch > 0 ? std::min(options.batch, 4096u) : kMostRunning;
  const auto plan = [&](int tensor_parallel) {
    base.tensor_parallel = tensor_parallel > 1 ? tensor_parallel : 0;
    result.reports.clear();
    result.left_out.clear();
    result.reports = ReportPlacements(base, result.machine, result.load, options.cache_gpus, &result.left_out);
    return std::any_of(result.reports.begin(), result.reports.end(),
                       [](const PlacementReport& report) { return report.gpus > 0 && report.fits(); });
  };
  if (options.tensor_parallel > 0) {
    plan(options.tensor_parallel);
  } else if (!plan(1) && !plan(2) && !plan(4)) {
    plan(1);
  }
  result.best = Recommend(result.reports, result.machine, !options.machine.gpu.empty());
  if (result.best != nullptr) result.command = UpCommandLine(*result.best);
  return result;
}

std::string Seconds(double seconds) {
  return seconds < 1 ? absl::StrFormat("%.0f ms", seconds * 1e3) : absl::StrFormat("%.1f s", seconds);
}

// One sentence: what to start with, and what it will be like.
std::string Recommendation(const PlanResult& result) {
  if (result.best == nullptr) {
    if (result.reports.size() == 1) return "none: " + result.reports[0].verdict;
    return "no placement holds one sequence: shorten --context, or plan for GPUs with more memory (--gpu, "
           "--tensor-parallel)";
  }
  const PlacementReport& best = *result.best;
  if (best.memory.inference.empty()) {
    return absl::StrFormat("%s: %s\n    room for the KV of %d sequences of %u tokens; nothing computes on this node",
                           best.name, result.command, static_cast<int64_t>(best.memory.sequences),
                           result.load.context_tokens);
  }
  return absl::StrFormat(
      "%s: %s\n    %.0f sequences of %u tokens at once (%s is the limit at %d), %.3g ms between tokens, %.0f tokens/s; "
      "the first token after %s alone, after %s for the last of all at once",
      best.name, result.command, best.batch, result.load.context_tokens, best.memory.limited_by,
      static_cast<int64_t>(best.memory.sequences), best.step.expected_s * 1e3, best.tokens_per_s,
      Seconds(best.first.alone_s), Seconds(best.first.last_of_batch_s));
}

void PrintJson(const PlanResult& result) {
  nlohmann::ordered_json out;
  out["gpu"] = result.machine.gpu_name;
  out["cpu"] = result.machine.host_name;
  out["context"] = result.load.context_tokens;
  for (const PlacementReport& report : result.reports) {
    nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
    for (const InferenceMemory& rank : report.memory.inference) {
      nlohmann::ordered_json one = {
          {"rank", rank.name}, {"count", rank.count}, {"device", rank.on_gpu ? "gpu" : "cpu"}, {"gpus", rank.gpus}};
      if (rank.plan.ok()) {
        one["weights_bytes"] = rank.plan->weights_bytes;
        one["slot_bytes"] = rank.plan->slot_bytes;
        one["slot_pages"] = rank.plan->slot_pages;
        one["host_slot_bytes"] = rank.plan->host_slot_bytes;
        one["index_bytes"] = rank.plan->index_bytes;
        one["prefill_bytes"] = rank.plan->prefill_bytes;
        one["activation_bytes"] = rank.plan->activation_bytes;
        one["available_bytes"] = rank.plan->available_bytes;
        one["sequences"] = rank.sequences;
      } else {
        one["error"] = std::string(rank.plan.status().message());
      }
      ranks.push_back(std::move(one));
    }
    for (const CacheMemory& rank : report.memory.cache) {
      nlohmann::ordered_json one = {{"rank", rank.name}, {"count", rank.count}, {"shards", rank.shards}};
      if (rank.plan.ok() && rank.room.ok()) {
        one["kv_bytes"] = rank.plan->kv_bytes;
        one["blocks"] = rank.room->total_blocks;
        one["block_bytes"] = rank.room->block_bytes;
        one["blocks_per_sequence"] = rank.room->demand.blocks;
        one["sequences"] = rank.sequences;
        if (rank.has_peer_links) one["copied_sequences"] = rank.copied;
      } else {
        one["error"] = std::string((rank.plan.ok() ? rank.room.status() : rank.plan.status()).message());
      }
      ranks.push_back(std::move(one));
    }
    out["placements"].push_back({{"placement", report.name},
                                 {"fits", report.memory.sequences},
                                 {"limited_by", report.memory.limited_by},
                                 {"batch", report.batch},
                                 {"gpus", report.gpus},
                                 {"step_ms", report.step.expected_s * 1e3},
                                 {"step_floor_ms", report.step.floor_s * 1e3},
                                 {"first_token_s", report.first.alone_s},
                                 {"last_first_token_s", report.first.last_of_batch_s},
                                 {"tokens_per_s", report.tokens_per_s},
                                 {"tokens_per_s_per_gpu", report.tokens_per_s_per_device()},
                                 {"kv_host_bytes", report.kv_host_bytes},
                                 {"verdict", report.verdict},
                                 {"ranks", std::move(ranks)},
                                 {"arithmetic", report.step.arithmetic + report.first.arithmetic}});
  }
  out["left_out"] = result.left_out;
  if (result.best == nullptr) {
    out["recommendation"] = nullptr;
  } else {
    out["recommendation"] = {{"placement", result.best->name}, {"command", result.command}};
  }
  std::printf("%s\n", out.dump(2).c_str());
}

void Print(const PlanResult& result) {
  std::printf("GPU: %s\n%s\n", result.machine.gpu_name.c_str(), result.machine.host_name.c_str());
  for (const PlacementReport& report : result.reports) {
    std::printf("\n%s\n", report.name.c_str());
    for (const std::string& line : report.memory.arithmetic) std::printf("    %s\n", line.c_str());
    for (const absl::string_view line :
         absl::StrSplit(report.step.arithmetic + report.first.arithmetic, '\n', absl::SkipEmpty())) {
      std::printf("    %s\n", std::string(line).c_str());
    }
    if (!report.verdict.empty()) std::printf("    %s\n", report.verdict.c_str());
  }
  for (const std::string& why : result.left_out) std::printf("\nleft out: %s\n", why.c_str());
  std::printf("\n%-24s %9s %8s %10s %10s %14s %12s\n", "", "fit", "batch", "step ms", "at least", "tok/s a GPU",
              "first token");
  for (const PlacementReport& report : result.reports) {
    if (!report.fits()) {
      std::printf("%-24s %9s\n", report.name.c_str(), "none");
      continue;
    }
    std::printf("%-24s %9lld %8.0f %10.2f %10.2f %14.0f %12s  %s\n", report.name.c_str(),
                static_cast<long long>(report.memory.sequences), report.batch, report.step.expected_s * 1e3,
                report.step.floor_s * 1e3, report.tokens_per_s_per_device(), Seconds(report.first.alone_s).c_str(),
                report.verdict.c_str());
  }
  std::printf("\nrecommendation: %s\n", Recommendation(result).c_str());
}

int PlanMain(const Arguments& given) {
  PlanOptions options;
  if (const std::optional<int> code = ParseCommandLine(kPlanCommand, WithLongNames(given), options)) return *code;
  if (options.model.empty() == options.file.empty()) {
    return Fail(kPlanCommand, absl::InvalidArgumentError("give --model, or a manifest with -f"), kExitUsage);
  }
  const absl::StatusOr<PlanResult> result = options.file.empty() ? PlanPlacements(options) : PlanManifest(options);
  if (!result.ok()) return Fail(kPlanCommand, result.status());
  options.json ? PrintJson(*result) : Print(*result);
  return result->best != nullptr ? kExitOk : kExitFailure;
}

}  // namespace

const Command kPlanCommand = {
    .name = "plan",
    .summary = "say what fits, how fast it will be and what to start with, of a model or of a manifest",
    .synopsis = "(--model MODEL | -f FILE) [--option=value ...]",
    .about = kPlanAbout,
    .options = Declared<PlanOptions>,
    .run = PlanMain};

}  // namespace winnow
