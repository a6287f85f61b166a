#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cache_rank/store/kv_room.h"
#include "cmd/role/cache_memory.h"
#include "cmd/up/up_options.h"
#include "common/base/status.h"
#include "inference_rank/memory/memory_plan.h"
#include "inference_rank/service/rank_model.h"
#include "kernels/plugin/device_table.h"

namespace winnow {

// The memory that processes find: a machine's, or what a container may take.
struct MemoryThere {
  uint64_t host_bytes = 0;
  bool host_is_known = true;                   // otherwise it has as much as it takes
  uint64_t gpu_bytes = 0;                      // free, of each GPU; 0: there is none
  int gpus = 0;                                // of the machine
  const device::DeviceTable* table = nullptr;  // null: what GPUs need is estimated
  std::string gpu_name = "GPU";                // for messages
};

// Ranks of one kind, with what each of them takes: worked out by the functions that the ranks themselves start by.
struct InferenceMemory {
  int count = 0;
  std::string name = {};  // of the first
  bool on_gpu = false;
  int gpus = 0;  // of each rank
  bool selects_in_place = false;
  MemoryNeeds needs = {};
  absl::StatusOr<MemoryPlan> plan = absl::UnknownError("not planned");  // as the rank would say it
  uint32_t sequences = 0;                                               // at once, of each rank
};
struct CacheMemory {
  int count = 0;
  std::string name = {};
  bool is_hosted = false;  // by inference ranks
  absl::StatusOr<CacheMemoryPlan> plan = absl::UnknownError("not planned");
  absl::StatusOr<KvRoom> room = absl::UnknownError("not planned");  // of each rank, for its shard of a sequence
  int shards = 1;                                                   // of a sequence
  uint64_t sequences = 0;                                           // at once, of all ranks
  // With peer links: sequences whose rows lie in the ranks' GPUs, all together; others go by frames, which is slower.
  bool has_peer_links = false;
  uint64_t copied = 0;
};

// The memory of all ranks that one machine runs.
struct ClusterMemory {
  RankModel model;
  uint32_t positions = 0;                  // of each sequence
  std::vector<InferenceMemory> inference;  // one; or prefill and decode
  std::vector<CacheMemory> cache;          // one, or none on a node without
  absl::Status status;                     // of the first rank that would refuse to start, or of all together
  uint64_t sequences = 0;                  // at once
  std::string limited_by;                  // "slots of inference-0", "KV of cache-0", "--max-running"
  std::vector<std::string> arithmetic;     // a line for each rank

  bool fits() const { return status.ok(); }
};

// What `options` come to on such a machine, for sequences of so many positions, prompt and answer together (0: the
// longest). Errors are those of the options or of the model's files; what does not fit is `status`.
absl::StatusOr<ClusterMemory> PlanClusterMemory(const UpOptions& options, const MemoryThere& there,
                                                uint32_t positions = 0);

// Of this machine, which has so many GPUs, for `winnow up`: RESOURCE_EXHAUSTED when ranks that fit one by one do not
// fit its memory together, with what is automatic at its least.
absl::Status CheckFitsTogether(const UpOptions& options, int gpus);

// For `winnow config check`, which looks at no machine: what no machine could start.
absl::Status CheckRanksFit(const UpOptions& options);

}  // namespace winnow
