#include "cmd/plan/rank_sizes.h"

#include <algorithm>

#include "cmd/plan/cluster_memory.h"

namespace winnow {
namespace {

constexpr int64_t kMib = 1 << 20;
constexpr int64_t kUnlimitedBytes = int64_t{1} << 50;

// Processes of the demo model take 35 to 60 MiB beside their plans; links and their buffers grow with the ranks.
constexpr int64_t kProcessBytes = 256 * kMib;
constexpr int64_t kHeadroomParts = 8;

// A rank computes on a GPU where it is told to: elsewhere nobody gives it one.
bool IsOnGpu(const DeviceChoice& device) {
  return device.kind == DeviceChoice::Kind::kGpu;
}

void TakeWithoutGpu(DeviceChoice& device) {
  if (!IsOnGpu(device)) device = {DeviceChoice::Kind::kCpu, 0};
}

int64_t WithoutKv(const CacheMemoryPlan& plan) {
  return plan.total_bytes() - plan.kv_bytes;
}

// Room for the sequences of all machines that run at once, of the longest context.
int64_t KvOfRunning(const UpOptions& options, const CacheMemory& cache) {
  const bool alone = options.part.host.empty();
  const int computing = options.splits_phases() ? options.decode_ranks : options.inference_ranks;
  const uint64_t sequences = uint64_t{options.max_running} * (alone ? computing : options.part.all_decoding_ranks);
  const uint64_t ranks = alone ? cache.count : std::max(options.part.all_cache_ranks, 1);
  return static_cast<int64_t>(cache.room->BytesFor((sequences * cache.shards + ranks - 1) / ranks));
}

absl::Status Within(int64_t limit_bytes, const std::string& name, const absl::Status& status) {
  if (status.ok() || limit_bytes == 0) return status.ok() ? status : Annotate(status, name);
  return Annotate(status, absl::StrCat(name, ", which may take ", limit_bytes / kMib, " MiB, ",
                                       (limit_bytes - PlannedWithin(limit_bytes)) / kMib, " of them headroom"));
}

}  // namespace

int64_t LimitFor(int64_t planned_bytes) {
  const int64_t bytes = planned_bytes + planned_bytes / kHeadroomParts + kProcessBytes;
  return (bytes + kMib - 1) / kMib * kMib;
}

int64_t PlannedWithin(int64_t limit_bytes) {
  return std::max<int64_t>(limit_bytes - kProcessBytes, 0) / (kHeadroomParts + 1) * kHeadroomParts;
}

absl::StatusOr<RankSizes> SizeRanks(const UpOptions& given, int64_t limit_bytes) {
  UpOptions options = given;
  TakeWithoutGpu(options.device);
  TakeWithoutGpu(options.cache_device);
  const int64_t memory_bytes = limit_bytes > 0 ? PlannedWithin(limit_bytes) : kUnlimitedBytes;
  const auto plan_with = [&options](int64_t host_bytes) {
    return PlanClusterMemory(
        options, {.host_bytes = static_cast<uint64_t>(host_bytes), .gpu_bytes = kUnlimitedBytes, .gpus = 64});
  };
  RankSizes sizes{.inference_limit_bytes = limit_bytes, .cache_limit_bytes = limit_bytes};

  WINNOW_ASSIGN_OR_RETURN(const ClusterMemory wanted, plan_with(kUnlimitedBytes));
  for (const CacheMemory& cache : wanted.cache) {
    WINNOW_RETURN_IF_ERROR(Annotate(cache.plan.status(), cache.name));
    WINNOW_RETURN_IF_ERROR(Annotate(cache.room.status(), cache.name));
    if (options.cache_memory_bytes > 0 || IsOnGpu(options.cache_device)) continue;
    if (limit_bytes == 0) {
      sizes.cache_memory_bytes = KvOfRunning(options, cache);
    } else if (cache.is_hosted) {
      sizes.cache_memory_bytes = memory_bytes / 10 * 3;  // the rank computes in the rest
    } else {
      sizes.cache_memory_bytes = std::max<int64_t>(memory_bytes - WithoutKv(*cache.plan), 1);
    }
    options.cache_memory_bytes = sizes.cache_memory_bytes;
  }

  WINNOW_ASSIGN_OR_RETURN(const ClusterMemory cluster, plan_with(memory_bytes));
  int64_t hosted_bytes = 0;
  for (const CacheMemory& cache : cluster.cache) {
    WINNOW_RETURN_IF_ERROR(Within(limit_bytes, cache.name, cache.plan.status()));
    WINNOW_RETURN_IF_ERROR(Within(limit_bytes, cache.name, cache.room.status()));
    if (cache.is_hosted) hosted_bytes = cache.plan->total_bytes();
    if (limit_bytes == 0 && !IsOnGpu(options.cache_device))
      sizes.cache_limit_bytes = LimitFor(cache.plan->total_bytes());
  }
  for (const InferenceMemory& rank : cluster.inference) {
    WINNOW_RETURN_IF_ERROR(Within(limit_bytes, rank.name, rank.plan.status()));
    if (rank.on_gpu) continue;
    MemoryNeeds needs = rank.needs;
    needs.is_exclusive = true;
    const int64_t left_bytes = std::max<int64_t>(memory_bytes - hosted_bytes, 0);
    const absl::StatusOr<MemoryPlan> plan = PlanMemory(needs, static_cast<uint64_t>(left_bytes));
    WINNOW_RETURN_IF_ERROR(Within(limit_bytes, rank.name, plan.status()));
    if (options.slot_memory_bytes == 0) sizes.slot_memory_bytes = static_cast<int64_t>(plan->slot_bytes);
    if (options.prefill.memory_bytes == 0) sizes.prefill_memory_bytes = static_cast<int64_t>(plan->prefill_bytes);
    if (limit_bytes > 0) continue;
    const int64_t planned_bytes = static_cast<int64_t>(plan->total_bytes()) + hosted_bytes;
    sizes.inference_limit_bytes = std::max(sizes.inference_limit_bytes, LimitFor(planned_bytes));
  }
  return sizes;
}

}  // namespace winnow
