// Throughput of whole clusters under one limit of fast memory: what is gained by keeping less of each context in it.
//
// Every system serves the same closed loop of clients, whose prompts are distinct, fill their context and have been
// served before, so that they come from the prefix cache. `winnow up` runs on this machine's CPUs, with the cache rank
// inside the inference process; the load is that of `winnow bench serve`. The limit holds for slots, index and copies
// of rows; the place of the one or two prompts in prefill is the same in all systems and not counted.
#include <algorithm>
#include <cstdio>
#include <fstream>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/json.h"
#include "common/base/kv_layout.h"
#include "common/model/model_config.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/cluster.h"
#include "tools/load/load_run.h"
#include "tools/load/report.h"

ABSL_FLAG(std::string, model, "", "folder of the model to serve");
ABSL_FLAG(uint32_t, contexts, 4, "full contexts that the fast memory holds");
ABSL_FLAG(uint32_t, prompt, 8192, "tokens of a prompt");
ABSL_FLAG(uint32_t, output, 512, "tokens of an answer");
ABSL_FLAG(uint32_t, clients, 32, "clients, each with one request at a time");
ABSL_FLAG(uint32_t, rounds, 2, "requests of each client");
ABSL_FLAG(uint32_t, budget, 384, "rows that are selected");
ABSL_FLAG(uint32_t, pool, 512, "rows of a pool, where they are not for the preset to say");
ABSL_FLAG(std::string, only, "", "comma-separated systems to run: dense, quest, offload, winnow; empty: all");
ABSL_FLAG(std::string, flags, "", "of `winnow up`, for every system, separated by spaces");
ABSL_FLAG(std::string, json, "", "file for the figures");

namespace winnow {
namespace {

struct Options {
  std::string model;
  uint32_t contexts, prompt_tokens, output_tokens, clients, rounds, budget, pool;
  std::string flags, only, json;
};

struct System {
  std::string name;
  std::vector<std::string> flags;
};

struct Result {
  System system;
  LoadSummary load;
  double running = 0;            // mean over decode steps: tokens per step
  double loaded_per_step = 0;    // rows read from the large tier
  double streamed_per_step = 0;  // rows that came to slots
  double resident = 0;           // share of selected rows that were there
};

class Bench {
 public:
  Bench(const Options& options, const KvLayout& layout) : options_(options), layout_(layout) {}

  size_t fast_bytes() const { return options_.contexts * context_tokens() * layout_.token_bytes(); }
  std::vector<System> Systems() const;
  absl::StatusOr<Result> Run(const System& system) const;

 private:
  size_t context_tokens() const { return options_.prompt_tokens + options_.output_tokens; }
  // Slots of sequences with pools of `pool` rows: sinks and ring with them, in whole pages.
  size_t SlotBytes(size_t sequences, size_t pool) const {
    constexpr size_t kSinks = 4, kRing = 128;
    const size_t rows = (kSinks + kRing + pool + kSlotPageTokens - 1) / kSlotPageTokens * kSlotPageTokens;
    return sequences * rows * layout_.token_bytes();
  }
  std::vector<PlannedRequest> Requests(uint32_t rounds, uint32_t output_tokens) const;

  const Options& options_;
  const KvLayout layout_;
};

std::vector<System> Bench::Systems() const {
  const auto bytes = [](size_t n) { return absl::StrCat(n / 1024, "KiB"); };
  const std::string budget = absl::StrCat("--budget=", options_.budget);
  const std::string pool = absl::StrFormat("--pool-factor=%.4f", static_cast<double>(options_.pool) / options_.budget);
  const std::string all = absl::StrCat("--max-running=", options_.clients);
  const std::string contexts = absl::StrCat("--max-running=", options_.contexts);
  const size_t slots = SlotBytes(options_.clients, options_.pool);
  const size_t rest = fast_bytes() > slots ? fast_bytes() - slots : 0;
  return {
      // Every row attended; KV of running sequences in slots.
      {"dense", {"--selection=dense", "--slot-memory=" + bytes(SlotBytes(options_.contexts, context_tokens())), all}},
      // Pages of 16 selected with their bounds; all KV of running sequences counts as fast memory.
      {"quest", {"--selection=quest", budget, contexts}},
      // SparseServe's selection, rows in two tiers, everybody runs.
      {"offload",
       {"--selection=sparseserve,key_copy=int8", budget, pool, all, "--working-set-control=false",
        "--slot-memory=" + bytes(slots), "--fast-memory=" + bytes(rest)}},
      // Predicted one layer ahead, 8-bit cuboids of pages of 32, rows in two tiers.
      {"winnow",
       {"--selection=winnow,policy=top-k,scorer=page-cuboid,page_tokens=32", budget, pool, all,
        "--working-set-control=false", "--slot-memory=" + bytes(slots), "--fast-memory=" + bytes(rest)}},
  };
}

std::vector<PlannedRequest> Bench::Requests(uint32_t rounds, uint32_t output_tokens) const {
  std::vector<PlannedRequest> requests;
  for (uint32_t i = 0; i < rounds * options_.clients; ++i) {
    requests.push_back({.prompt = {{.content = 1 + i % options_.clients, .tokens = options_.prompt_tokens}},
                        .output_tokens = output_tokens});
  }
  return requests;
}

absl::StatusOr<Result> Bench::Run(const System& system) const {
  e2e::Cluster::Options cluster_options;
  cluster_options.model = options_.model;
  cluster_options.flags = {"--transport=inproc", "--log-level=warning",
                           absl::StrCat("--max-context=", context_tokens()), "--age-bound=0s"};
  cluster_options.flags.insert(cluster_options.flags.end(), system.flags.begin(), system.flags.end());
  for (const absl::string_view flag : absl::StrSplit(options_.flags, ' ', absl::SkipEmpty())) {
    cluster_options.flags.emplace_back(flag);
  }
  WINNOW_ASSIGN_OR_RETURN(const auto cluster, e2e::Cluster::Start(cluster_options));
  LoadClientOptions client_options;
  client_options.address = cluster->http_address();
  const std::unique_ptr<LoadClient> client = NewHttpLoadClient(client_options);
  const auto run_all = [&](const std::vector<PlannedRequest>& requests,
                           uint32_t concurrency) -> absl::StatusOr<std::vector<RequestTimes>> {
    std::vector<RequestTimes> times =
        RunLoad(requests, {.concurrency = concurrency, .first_token_id = 100, .num_token_ids = 3000}, *client);
    for (const RequestTimes& request : times) {
      if (!request.error.empty()) return absl::UnavailableError(request.error);
    }
    return times;
  };
  WINNOW_RETURN_IF_ERROR(run_all(Requests(1, 8), 1).status());

  const auto metrics = [&] { return cluster->MetricsOf("inference-0"); };
  const e2e::Metrics before = metrics();
  WINNOW_ASSIGN_OR_RETURN(const std::vector<RequestTimes> times,
                          run_all(Requests(options_.rounds, options_.output_tokens), options_.clients));
  const e2e::Metrics after = metrics();
  const auto grown = [&](const char* name, const e2e::Metrics::Labels& labels) {
    const double value = after.Value(name, labels) - before.Value(name, labels);
    return value == value ? value : 0;  // there is none
  };
  const e2e::Metrics::Labels inference = {{"role", "inference-rank"}}, cache = {{"role", "cache-rank"}};
  const double steps = std::max(1.0, grown("winnow_decode_steps_total", inference));
  Result result{.system = system, .load = Summarize(times, {})};
  result.running = static_cast<double>(result.load.output_tokens) / steps;
  result.loaded_per_step = grown("winnow_tier_loaded_rows_total", cache) / steps;
  result.streamed_per_step = grown("winnow_kv_stream_rows_total", cache) / steps;
  result.resident =
      grown("winnow_selection_hits_total", cache) / std::max(1.0, grown("winnow_selection_lookups_total", cache));
  return result;
}

nlohmann::ordered_json ToJson(const Options& options, size_t fast_bytes, const std::vector<Result>& results) {
  nlohmann::ordered_json json = {{"fast_bytes", fast_bytes},
                                 {"prompt_tokens", options.prompt_tokens},
                                 {"output_tokens", options.output_tokens},
                                 {"clients", options.clients},
                                 {"rounds", options.rounds},
                                 {"budget", options.budget},
                                 {"pool", options.pool}};
  for (const Result& result : results) {
    nlohmann::ordered_json system = SummaryJson(result.load, {});
    system["name"] = result.system.name;
    system["flags"] = absl::StrJoin(result.system.flags, " ");
    system["tokens_per_step"] = result.running;
    system["loaded_rows_per_step"] = result.loaded_per_step;
    system["streamed_rows_per_step"] = result.streamed_per_step;
    system["resident_share"] = result.resident;
    json["systems"].push_back(std::move(system));
  }
  return json;
}

absl::Status Main(const Options& options) {
  for (const uint32_t number : {options.contexts, options.prompt_tokens, options.output_tokens, options.clients,
                                options.rounds, options.budget, options.pool}) {
    if (number == 0) return absl::InvalidArgumentError("all numbers must be at least 1");
  }
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.model));
  const Bench bench(options, config.kv_layout(Dtype::kBf16));
  std::printf(
      "%u clients, %u prompt tokens from the prefix cache, %u answered, %u requests each; fast memory %.1f MiB\n",
      options.clients, options.prompt_tokens, options.output_tokens, options.rounds,
      static_cast<double>(bench.fast_bytes()) / 1048576);
  std::printf("%-9s %9s %9s %8s %8s %9s %9s %9s %9s %9s\n", "system", "tokens/s", "x dense", "running", "TPOT ms",
              "TTFT s", "cached", "resident", "streamed", "loaded");
  std::vector<Result> results;
  const std::vector<std::string> only = absl::StrSplit(options.only, ',', absl::SkipEmpty());
  for (const System& system : bench.Systems()) {
    if (!only.empty() && std::find(only.begin(), only.end(), system.name) == only.end()) continue;
    WINNOW_ASSIGN_OR_RETURN(Result result, bench.Run(system));
    const LoadSummary& load = result.load;
    const double dense = results.empty() ? 0 : results.front().load.output_tokens_per_s;
    std::printf("%-9s %9.0f %9.2f %8.1f %8.1f %9.2f %9.3f %9.3f %9.0f %9.0f\n", system.name.c_str(),
                load.output_tokens_per_s, dense > 0 ? load.output_tokens_per_s / dense : 1.0, result.running,
                load.tpot_s.mean * 1e3, load.ttft_s.mean,
                static_cast<double>(load.cached_tokens) / static_cast<double>(load.prompt_tokens), result.resident,
                result.streamed_per_step, result.loaded_per_step);
    std::fflush(stdout);
    results.push_back(std::move(result));
  }
  std::printf(
      "running: tokens per decode step; resident: share of selected rows; streamed, loaded: KV rows per step\n");
  if (options.json.empty()) return absl::OkStatus();
  std::ofstream file(options.json);
  file << ToJson(options, bench.fast_bytes(), results).dump(1) << "\n";
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError("cannot write " + options.json);
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("throughput of whole clusters under one limit of fast memory: --model=DIR [flags]");
  if (absl::ParseCommandLine(argc, argv).size() > 1 || absl::GetFlag(FLAGS_model).empty()) {
    std::fprintf(stderr, "%s\n", std::string(absl::ProgramUsageMessage()).c_str());
    return 2;
  }
  const absl::Status status = winnow::Main({.model = absl::GetFlag(FLAGS_model),
                                            .contexts = absl::GetFlag(FLAGS_contexts),
                                            .prompt_tokens = absl::GetFlag(FLAGS_prompt),
                                            .output_tokens = absl::GetFlag(FLAGS_output),
                                            .clients = absl::GetFlag(FLAGS_clients),
                                            .rounds = absl::GetFlag(FLAGS_rounds),
                                            .budget = absl::GetFlag(FLAGS_budget),
                                            .pool = absl::GetFlag(FLAGS_pool),
                                            .flags = absl::GetFlag(FLAGS_flags),
                                            .only = absl::GetFlag(FLAGS_only),
                                            .json = absl::GetFlag(FLAGS_json)});
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}
