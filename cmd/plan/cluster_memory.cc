#include "cmd/plan/cluster_memory.h"

#include <algorithm>
#include <limits>

#include "cache_rank/select/predictor/query_projection.h"
#include "cache_rank/store/device/device_kv_shape.h"
#include "cmd/plan/placement_choice.h"
#include "cmd/role/machine.h"
#include "cmd/role/options/model_options.h"
#include "cmd/role/rank_options.h"
#include "common/base/gibibytes.h"
#include "common/base/gpu_kv_rows.h"
#include "common/base/kv_shard.h"
#include "common/model/synthetic_models.h"
#include "common/selection/shard_spec.h"
#include "inference_rank/backend/cpu_memory.h"
#include "inference_rank/backend/device_memory.h"
#include "model/forward.h"
#include "model/weights/device_weights.h"

namespace winnow {
namespace {

constexpr uint64_t kAnyMemory = uint64_t{1} << 50;
// Of a cache rank's GPU beside its copies of sequences: CUDA, peer links and rows on their way.
constexpr uint64_t kPeerLinkBytes = uint64_t{3} << 30;
constexpr uint32_t kCopiesPerBatchRow = 2;

// Whether the ranks compute on GPUs: as they would decide it themselves.
absl::StatusOr<bool> ComputesOnGpu(const UpOptions& options, const ModelConfig& config, const MemoryThere& there,
                                   int gpus_of_rank) {
  if (options.device.kind == DeviceChoice::Kind::kCpu) return false;
  DeviceWeightOptions weights;
  weights.dtype = options.compute;
  weights.shard.count = gpus_of_rank;
  const absl::Status served = CheckDeviceModel(config, weights);
  const bool must = options.device.kind == DeviceChoice::Kind::kGpu || gpus_of_rank > 1;
  const absl::Status rows = CheckKvRowsOnGpus(options.kv_dtype, gpus_of_rank,
                                              static_cast<uint64_t>(options.slot_host_memory_bytes), config.head_dim);
  if (must) WINNOW_RETURN_IF_ERROR(rows);
  if (must && !served.ok()) return served;
  if (must && there.gpu_bytes == 0) {
    return absl::UnavailableError(
        absl::StrCat("--device=", ToString(options.device), ": there is no GPU on this machine"));
  }
  return served.ok() && rows.ok() && there.gpu_bytes > 0;
}

// Beside nodes that have one.
int GpusInReach(const MemoryThere& there) {
  return std::min(there.gpus, 64);
}

absl::StatusOr<InferenceMemory> PlanInference(const UpOptions& options, int index, int count, const RankModel& model,
                                              const MemoryThere& there, uint32_t positions) {
  InferenceMemory memory{.count = count, .name = options.InferenceRankName(index)};
  WINNOW_ASSIGN_OR_RETURN(const InferenceRankOptions rank, RankOptionsOf(options.InferenceRank(index, {})));
  const absl::StatusOr<std::vector<int>> gpus = GpusOfRank(rank.device, rank.tensor_parallel, 0, 1);
  memory.gpus = options.device.kind == DeviceChoice::Kind::kCpu || !gpus.ok() ? 1 : static_cast<int>(gpus->size());
  WINNOW_ASSIGN_OR_RETURN(memory.on_gpu, ComputesOnGpu(options, model.config, there, memory.gpus));
  if (memory.on_gpu) {
    const BackendOptions backend = GpuBackendOptions(rank, model);
    WINNOW_RETURN_IF_ERROR(CheckSlotHostMemory(backend, memory.gpus));
    memory.needs = there.table != nullptr ? PlanDeviceRank(*there.table, backend, memory.gpus, absl::OkStatus()).needs
                                          : EstimateDeviceNeeds(backend, memory.gpus, GpusInReach(there));
    memory.needs.memory_name = memory.gpus > 1 ? absl::StrCat("the memory of each ", there.gpu_name)
                                               : absl::StrCat("the memory of the ", there.gpu_name);
    memory.selects_in_place = memory.needs.selects_in_place;
    memory.plan = PlanMemory(memory.needs, UsableGpuBytes(there.gpu_bytes));
  } else {
    WINNOW_RETURN_IF_ERROR(CheckSlotHostMemoryOfCpu(rank.slot_host_memory_bytes));
    memory.gpus = 0;
    memory.needs = CpuMemoryNeeds(CpuBackendOptions(rank, model));
    memory.plan = PlanMemory(memory.needs, there.host_bytes);
  }
  if (memory.plan.ok()) memory.sequences = RunningSequences(memory.needs, *memory.plan, positions);
  return memory;
}

// Sequences that a cache rank's GPU has copies of.
uint64_t Copied(const UpOptions& options, const KvLayout& shard, const SelectionSpec& spec, const MemoryThere& there,
                uint32_t positions) {
  const uint64_t memory = options.cache_device_memory_bytes > 0
                              ? static_cast<uint64_t>(options.cache_device_memory_bytes) / 4 * 3
                              : UsableGpuBytes(there.gpu_bytes) / 10 * 9;
  const uint32_t rows = std::min<uint32_t>(options.max_running, kMaxDecodeRows);
  DeviceKvShape shape = DeviceKvShapeFor(spec, shard, rows * kCopiesPerBatchRow, positions, 0);
  FitBlocks(memory > kPeerLinkBytes ? memory - kPeerLinkBytes : 0,
            static_cast<size_t>(options.cache_device_host_memory_bytes), &shape);
  return shape.num_blocks / std::max<uint64_t>(shape.BlocksOf(positions), 1);
}

absl::StatusOr<CacheMemory> PlanCache(const UpOptions& options, const RankModel& model, const MemoryThere& there,
                                      uint32_t positions) {
  CacheMemory memory{.name = options.CacheRankName(0), .is_hosted = options.hosts_cache()};
  memory.count = memory.is_hosted ? options.num_inference_ranks() : options.cache_ranks;
  CacheOptions cache = options.CacheRank(0, {}).cache;
  if (options.cache_memory_bytes == 0 && memory.count > 1) {
    cache.memory_bytes = static_cast<int64_t>(there.host_bytes / 10 * 3) / memory.count;
  }
  int64_t projection_bytes = 0;
  if (!cache.model.empty() && !IsSyntheticModel(cache.model)) {
    WINNOW_ASSIGN_OR_RETURN(const size_t bytes, QueryProjection::BytesNeeded(cache.model, cache.compute));
    projection_bytes = static_cast<int64_t>(bytes);
  }
  memory.plan = PlanCacheMemory(cache, projection_bytes, static_cast<int64_t>(there.host_bytes));
  if (!memory.plan.ok()) return memory;

  const int all = options.part.host.empty() ? memory.count : std::max(options.part.all_cache_ranks, 1);
  const auto wanted = static_cast<int>(options.placement.cache_shards);
  memory.shards = std::min(wanted > 0 ? wanted : all, static_cast<int>(model.layout.num_lists()));
  WINNOW_ASSIGN_OR_RETURN(const std::vector<KvShard> shards, CutIntoShards(model.layout, memory.shards));
  const KvShard& largest = *std::max_element(
      shards.begin(), shards.end(), [](const KvShard& a, const KvShard& b) { return a.num_lists() < b.num_lists(); });
  const KvLayout layout = LayoutOf(model.layout, largest);
  const SelectionSpec spec = SpecOfShard(model.selection, model.layout, largest);
  memory.room = RoomFor(layout, spec, positions, static_cast<size_t>(memory.plan->kv_bytes),
                        static_cast<size_t>(memory.plan->fast_bytes), model.config.state_floats() * sizeof(float));
  if (!memory.room.ok()) return memory;
  memory.sequences = memory.room->sequences() * all / memory.shards / options.placement.replicas;
  const bool on_gpu = options.cache_device.kind != DeviceChoice::Kind::kCpu && there.gpu_bytes > 0;
  memory.has_peer_links = on_gpu && options.kv_dtype == Dtype::kBf16 && GpusInReach(there) > 1 && !IsDense(spec) &&
                          (options.transport == TransportKind::kAuto || options.transport == TransportKind::kP2p);
  if (memory.has_peer_links) memory.copied = Copied(options, layout, spec, there, positions) * all / memory.shards;
  return memory;
}

void Limit(uint64_t sequences, const std::string& by, ClusterMemory& cluster) {
  if (!cluster.limited_by.empty() && sequences >= cluster.sequences) return;
  cluster.sequences = sequences;
  cluster.limited_by = by;
}

// What automatic sizes are not counted in, as ranks can do with less.
uint64_t LeastHostBytes(const ClusterMemory& cluster, const UpOptions& options, std::string& sum) {
  uint64_t all = 0;
  const auto add = [&](const std::string& name, int count, uint64_t bytes) {
    if (count == 0 || bytes == 0) return;
    all += bytes * count;
    absl::StrAppend(&sum, sum.empty() ? "" : " + ", name,
                    count > 1 ? absl::StrCat(" and its like ", count, " x ") : " ", Gibibytes(bytes));
  };
  for (const InferenceMemory& rank : cluster.inference) {
    if (rank.plan.ok()) add(rank.name, rank.count, rank.on_gpu ? rank.plan->host_slot_bytes : rank.plan->least_bytes);
  }
  for (const CacheMemory& rank : cluster.cache) {
    if (!rank.plan.ok()) continue;
    const int64_t automatic = options.cache_memory_bytes == 0 ? rank.plan->kv_bytes : 0;
    add(rank.name, rank.count, static_cast<uint64_t>(rank.plan->total_bytes() - automatic));
  }
  return all;
}

absl::Status CheckTogether(const ClusterMemory& cluster, const UpOptions& options, const MemoryThere& there) {
  std::string sum;
  const uint64_t all = LeastHostBytes(cluster, options, sum);
  if (all <= there.host_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the ranks of this machine do not fit its memory together: ", sum, " = ", Gibibytes(all), " of ",
      Gibibytes(there.host_bytes), ", ", Gibibytes(all - there.host_bytes),
      " are missing: lower --cache-memory, --slot-memory, --slot-host-memory, --prefill-memory or --max-context"));
}

}  // namespace

absl::StatusOr<ClusterMemory> PlanClusterMemory(const UpOptions& given, const MemoryThere& there, uint32_t positions) {
  UpOptions options = given;
  ChooseInPlaceSelection(options, there.gpu_bytes > 0 ? there.gpus : 0);
  ClusterMemory cluster;
  UpOptions with_rank = options;  // a node may have none, and its cache ranks hold the same model
  if (with_rank.num_inference_ranks() == 0) with_rank.inference_ranks = 1;
  WINNOW_ASSIGN_OR_RETURN(const InferenceRankOptions rank, RankOptionsOf(with_rank.InferenceRank(0, {})));
  WINNOW_ASSIGN_OR_RETURN(cluster.model, RankModel::Read(rank, RankModel::Weights::kIfThere));
  cluster.positions = positions == 0 ? cluster.model.max_context_tokens : positions;
  if (cluster.positions > cluster.model.max_context_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("sequences of ", cluster.positions, " tokens are longer than the ",
                                                   cluster.model.max_context_tokens, " of --max-context"));
  }
  const auto fail = [&](const std::string& name, const absl::Status& status) {
    if (cluster.status.ok() && !status.ok()) cluster.status = Annotate(status, name);
  };
  const auto add = [&](int index, int count, bool decodes) -> absl::Status {
    if (count == 0) return absl::OkStatus();
    WINNOW_ASSIGN_OR_RETURN(InferenceMemory memory,
                            PlanInference(options, index, count, cluster.model, there, cluster.positions));
    fail(memory.name, memory.plan.status());
    if (memory.plan.ok()) {
      cluster.arithmetic.push_back(absl::StrCat(memory.name, count > 1 ? absl::StrCat(" (", count, " of them)") : "",
                                                ": ", memory.plan->ToString()));
      const bool by_option = memory.sequences == memory.plan->max_running;
      if (decodes) {
        Limit(uint64_t{memory.sequences} * count,
              by_option ? "--max-running" : absl::StrCat("the slots of ", memory.name), cluster);
      }
    }
    cluster.inference.push_back(std::move(memory));
    return absl::OkStatus();
  };
  if (options.splits_phases()) {
    WINNOW_RETURN_IF_ERROR(add(0, options.prefill_ranks, /*decodes=*/options.decode_ranks == 0));
    WINNOW_RETURN_IF_ERROR(add(options.prefill_ranks, options.decode_ranks, /*decodes=*/true));
  } else {
    WINNOW_RETURN_IF_ERROR(add(0, options.inference_ranks, /*decodes=*/true));
  }
  if (options.cache_ranks > 0 || options.hosts_cache()) {
    WINNOW_ASSIGN_OR_RETURN(CacheMemory memory, PlanCache(options, cluster.model, there, cluster.positions));
    fail(memory.name, memory.plan.ok() ? memory.room.status() : memory.plan.status());
    if (memory.plan.ok() && memory.room.ok()) {
      std::string of = memory.shards > 1 ? absl::StrCat(", for one of ", memory.shards, " shards") : "";
      cluster.arithmetic.push_back(absl::StrCat(
          memory.name, memory.count > 1 ? absl::StrCat(" (", memory.count, " of them)") : "", ": ",
          there.host_is_known ? memory.plan->ToString() + "; " : "", "a sequence of ", cluster.positions,
          " tokens takes ",
          there.host_is_known ? memory.room->ToString()
                              : absl::StrCat(memory.room->demand.blocks, " blocks of ", memory.room->block_bytes,
                                             " bytes of the host's memory"),
          of, memory.has_peer_links ? absl::StrCat("; its GPU has copies of ", memory.copied, " of them") : ""));
      Limit(memory.sequences, absl::StrCat("the KV of ", memory.name), cluster);
    }
    cluster.cache.push_back(std::move(memory));
  }
  if (cluster.status.ok()) cluster.status = CheckTogether(cluster, options, there);
  if (!cluster.status.ok()) cluster.sequences = 0;
  return cluster;
}

absl::Status CheckFitsTogether(const UpOptions& options, int gpus) {
  const MemoryThere there{
      .host_bytes = static_cast<uint64_t>(FreeMemoryBytes()), .gpu_bytes = gpus > 0 ? kAnyMemory : 0, .gpus = gpus};
  const absl::StatusOr<ClusterMemory> cluster = PlanClusterMemory(options, there);
  if (!cluster.ok()) return absl::OkStatus();  // whoever starts with it says what is wrong
  return CheckTogether(*cluster, options, there);
}

absl::Status CheckRanksFit(const UpOptions& options) {
  const MemoryThere there{.host_bytes = kAnyMemory, .gpu_bytes = kAnyMemory, .gpus = 64};
  WINNOW_ASSIGN_OR_RETURN(const ClusterMemory cluster, PlanClusterMemory(options, there));
  for (const InferenceMemory& rank : cluster.inference) {
    WINNOW_RETURN_IF_ERROR(Annotate(rank.plan.status(), rank.name));
  }
  for (const CacheMemory& rank : cluster.cache) {
    WINNOW_RETURN_IF_ERROR(Annotate(rank.plan.status(), rank.name));
    WINNOW_RETURN_IF_ERROR(Annotate(rank.room.status(), rank.name));
  }
  return absl::OkStatus();
}

}  // namespace winnow
