#include "cmd/plan/placement_report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "cmd/plan/placement_choice.h"
#include "common/model/synthetic_models.h"

namespace winnow {
namespace {

constexpr uint64_t kAsMuchAsItTakes = uint64_t{1} << 50;
constexpr double kReportGib = 1 << 30;

int InferenceGpus(const UpOptions& options) {
  if (options.device.kind == DeviceChoice::Kind::kCpu) return 0;
  return std::max(options.device.num_named(), std::max(options.tensor_parallel, 1) * options.num_inference_ranks());
}

int CacheGpus(const UpOptions& options) {
  return options.cache_device.kind == DeviceChoice::Kind::kCpu || options.hosts_cache() ? 0 : options.cache_ranks;
}

// Bytes per weight as the rank holds them, whatever the checkpoint has.
double WeightElementBytes(const InferenceMemory& rank, const ModelConfig& config) {
  const double bytes = static_cast<double>(rank.needs.weights_bytes);
  return bytes * std::max(rank.gpus, 1) / PlanModelOf(config, 1, 2).weight_bytes;
}

// Bytes of an element of the rows, with their scales shared out.
double KvElementBytes(const KvLayout& layout) {
  return static_cast<double>(layout.row_bytes()) / static_cast<double>(layout.row.elements(layout.head_dim));
}

bool AttendsEverything(const SelectionSpec& spec, uint32_t context_tokens) {
  return IsDense(spec) || context_tokens <= spec.dense_below_tokens || context_tokens <= spec.budget_tokens;
}

StepPlacement PlacementOf(const ClusterMemory& memory, const InferenceMemory& rank, const PlannedMachine& machine) {
  const SelectionSpec& spec = memory.model.selection;
  StepPlacement placement{.on_gpu = rank.on_gpu, .devices = std::max(rank.gpus, 1)};
  placement.compute = rank.on_gpu ? machine.gpu : machine.host;
  placement.waits_for_query = spec.predictor == Predictor::kExact;
  placement.scorer = ScorerOf(spec, KvElementBytes(memory.model.layout));
  if (AttendsEverything(spec, memory.positions)) return placement;
  const bool on_cache_gpus = !memory.cache.empty() && memory.cache[0].has_peer_links;
  placement.selected_by = rank.selects_in_place ? SelectedBy::kInPlace
                          : on_cache_gpus       ? SelectedBy::kCacheGpus
                                                : SelectedBy::kCacheHost;
  placement.cache = on_cache_gpus ? machine.gpu : machine.host;
  placement.cache_devices = on_cache_gpus ? memory.cache[0].count : 1;
  return placement;
}

std::string VerdictOn(const PlacementReport& report, const PlannedLoad& load) {
  if (!report.memory.fits()) return absl::StrCat("does not fit: ", report.memory.status.message());
  if (report.memory.sequences == 0) return absl::StrCat("not one sequence fits: ", report.memory.limited_by);
  if (load.batch > report.memory.sequences) return absl::StrCat("only ", report.memory.sequences, " fit");
  return "";
}

}  // namespace

MemoryThere MemoryFor(const UpOptions& options, const PlannedMachine& machine) {
  MemoryThere there;
  const int wanted = InferenceGpus(options) + CacheGpus(options);
  if (wanted > 0 && machine.gpus > 0) {
    there.gpu_bytes = static_cast<uint64_t>(machine.gpu.memory_bytes);
    there.gpus = machine.has_gpus ? machine.gpus : std::min(wanted, machine.gpus);
    there.table = machine.table;
    there.gpu_name = std::string(machine.gpu_name.substr(0, machine.gpu_name.find(',')));
  }
  there.host_is_known = machine.host_is_given || wanted == 0;
  there.host_bytes = there.host_is_known ? static_cast<uint64_t>(machine.host.memory_bytes) : kAsMuchAsItTakes;
  return there;
}

absl::StatusOr<PlacementReport> ReportPlacement(const std::string& name, const UpOptions& options,
                                                const PlannedMachine& machine, const PlannedLoad& load) {
  PlacementReport report{.name = name, .options = options};
  const MemoryThere there = MemoryFor(options, machine);
  WINNOW_ASSIGN_OR_RETURN(report.memory, PlanClusterMemory(options, there, load.context_tokens));
  const ClusterMemory& memory = report.memory;
  report.gpus = CacheGpus(options);
  report.batch = static_cast<double>(load.batch > 0 ? load.batch : memory.sequences);
  report.verdict = VerdictOn(report, load);
  if (memory.inference.empty()) return report;            // of a node that has none
  const InferenceMemory& rank = memory.inference.back();  // that decodes
  if (rank.on_gpu) report.gpus += rank.gpus * options.num_inference_ranks();
  report.weight_bytes = static_cast<double>(rank.needs.weights_bytes);
  // Sequences without a copy go by frames: possible, but nothing to plan with.
  if (!memory.cache.empty() && memory.cache[0].has_peer_links && memory.cache[0].copied < memory.sequences) {
    report.memory.sequences = memory.cache[0].copied;
    report.memory.limited_by = "the memory of the cache GPUs";
  }
  report.placement = PlacementOf(memory, rank, machine);
  report.verdict = VerdictOn(report, load);
  report.batch = static_cast<double>(load.batch > 0 ? load.batch : memory.sequences);
  if (!report.fits()) return report;
  const SelectionSpec& spec = memory.model.selection;
  const PlanModel model = PlanModelOf(memory.model.config, WeightElementBytes(rank, memory.model.config),
                                      KvElementBytes(memory.model.layout));
  const PlanWorkload workload{
      .context_tokens = static_cast<double>(load.context_tokens),
      .budget_tokens = static_cast<double>(spec.budget_tokens) + spec.sink_tokens + spec.recent_tokens,
      .overlap = load.overlap};
  const double per_rank = std::max(1.0, report.batch / rank.count);
  const double chunk = options.prefill.chunk > 0 ? options.prefill.chunk : rank.on_gpu ? 2048 : 512;
  report.step = EstimateStep(model, report.placement, workload, per_rank);
  report.first = EstimateFirstToken(model, report.placement, workload, load.cached_tokens, chunk, per_rank);
  report.tokens_per_s = report.batch / report.step.expected_s;
  if (!memory.cache.empty() && memory.cache[0].room.ok()) {
    report.kv_host_bytes = memory.cache[0].room->BytesFor(static_cast<uint64_t>(report.batch)) * memory.cache[0].shards;
    report.memory.arithmetic.push_back(
        absl::StrFormat("KV of %.0f sequences on the cache ranks: %.1f GiB of host memory", report.batch,
                        static_cast<double>(report.kv_host_bytes) / kReportGib));
  }
  return report;
}

std::vector<PlacementReport> ReportPlacements(const UpOptions& base, const PlannedMachine& machine,
                                              const PlannedLoad& load, int most_cache_gpus,
                                              std::vector<std::string>* left_out) {
  std::vector<PlacementReport> reports;
  const auto add = [&](const std::string& name, const UpOptions& options, bool may_be_recommended = true) {
    absl::StatusOr<PlacementReport> report = ReportPlacement(name, options, machine, load);
    if (report.ok()) {
      report->may_be_recommended = may_be_recommended;
      reports.push_back(*std::move(report));
    } else {
      left_out->push_back(absl::StrCat(name, ": ", report.status().message()));
    }
  };
  const int tensor_parallel = std::max(base.tensor_parallel, 1);
  const std::string computes = tensor_parallel > 1 ? absl::StrCat(tensor_parallel, " GPUs") : "1 GPU";
  UpOptions gpu = base;
  gpu.device = {DeviceChoice::Kind::kGpu, 0};
  for (int i = 1; i < tensor_parallel; ++i) gpu.device.more.push_back(i);
  gpu.cache_device = {DeviceChoice::Kind::kCpu, 0};
  UpOptions dense = gpu;
  dense.selection.specification = "dense";
  add(computes + ", dense", dense);
  UpOptions in_place = gpu;
  if (machine.has_gpus && machine.gpus >= 2 * tensor_parallel) in_place.select_in_place = SelectInPlace::kOn;
  add(computes + (tensor_parallel == 1 ? ", selects in place" : ", select in place"), in_place);
  UpOptions pages = in_place;
  pages.selection.specification = "quest";
  if (base.selection.specification != pages.selection.specification) {
    add(computes + ", quest in place", pages, /*may_be_recommended=*/false);
  }
  const int for_cache = machine.gpus - tensor_parallel;
  for (int gpus = tensor_parallel; gpus <= std::min(most_cache_gpus, for_cache); gpus += tensor_parallel) {
    UpOptions beside = gpu;
    beside.cache_device = {DeviceChoice::Kind::kGpu, tensor_parallel};
    beside.cache_ranks = gpus;
    beside.placement.cache_shards = static_cast<uint32_t>(tensor_parallel);
    add(absl::StrCat(computes, " + ", gpus, " cache"), beside);
  }
  if (!IsSyntheticModel(base.model) && tensor_parallel == 1) {
    UpOptions cpu = base;
    cpu.device = {DeviceChoice::Kind::kCpu, 0};
    cpu.cache_device = {DeviceChoice::Kind::kCpu, 0};
    add("CPU", cpu);
  }
  return reports;
}

const PlacementReport* Recommend(const std::vector<PlacementReport>& reports, const PlannedMachine& machine,
                                 bool gpu_was_named) {
  const bool on_cpu = !machine.has_gpus && !gpu_was_named &&
                      std::any_of(reports.begin(), reports.end(),
                                  [](const PlacementReport& report) { return report.gpus == 0 && report.fits(); });
  const PlacementReport* best = nullptr;
  for (const PlacementReport& report : reports) {
    if (!report.may_be_recommended || !report.fits() || (report.gpus == 0) != on_cpu) continue;
    if (best == nullptr || report.tokens_per_s_per_device() > best->tokens_per_s_per_device()) best = &report;
  }
  return best;
}

std::string UpCommandLine(const PlacementReport& report) {
  UpOptions options = report.options;
  options.max_running = static_cast<uint32_t>(std::max(1.0, std::ceil(report.batch / options.num_inference_ranks())));
  if (options.cache_memory_bytes == 0 && report.gpus > 0) {
    // Whole GiB, with room for prompts that are kept.
    const double each = static_cast<double>(report.kv_host_bytes) / std::max(options.cache_ranks, 1);
    options.cache_memory_bytes = static_cast<int64_t>((std::ceil(each / kReportGib) + 1) * kReportGib);
  }
  UpOptions plain;
  const Fields fields = Fields::Of(options), defaults = Fields::Of(plain);
  std::string line = "winnow up";
  for (size_t i = 0; i < fields.all().size(); ++i) {
    const std::string value = fields.all()[i].format();
    if (value != defaults.all()[i].format()) absl::StrAppend(&line, " --", fields.all()[i].name, "=", value);
  }
  return line;
}

}  // namespace winnow
