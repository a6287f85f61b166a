#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/parallel_for.h"
#include "common/base/status.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"
#include "inference_rank/memory/memory_plan.h"
#include "inference_rank/memory/prefill_region.h"
#include "inference_rank/memory/slot_pool.h"
#include "inference_rank/step/step_client.h"
#include "model/forward.h"
#include "model/peer_step_link.h"

namespace winnow {

// What an inference rank computes with: weights, forward pass and KV memory of a CPU or of a GPU. Used by one thread.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual Forward& forward() = 0;
  // Slots of the memory plan, where `forward` reads them. Once.
  virtual absl::StatusOr<SlotPool> NewSlotPool() = 0;
  // Where prompts in prefill lie; null: in host memory.
  virtual PrefillRegion* prefill_region() { return nullptr; }

  // The end of a peer link to the GPU of a cache rank that holds `shard` of sequences; FAILED_PRECONDITION says why
  // there can be none. Engine thread.
  virtual absl::StatusOr<std::unique_ptr<PeerStepLink>> NewPeerLink(const KvShard&) {
    return absl::FailedPreconditionError("the inference rank computes on the CPU");
  }

  // Decode steps over KV in the backend's own memory that run ahead of the host; null: there are none. They are the
  // backend's, and run beside what `forward` does.
  virtual StepClient* step_client() { return nullptr; }

  virtual const MemoryPlan& memory_plan() const = 0;
  // Where sequences' slots may lie; without pages in host memory: in one kind of memory.
  virtual SlotTiers slot_tiers() const { return {}; }
  // Kernel set, then dtypes: equal text promises equal bits.
  virtual std::string numerics() const = 0;
  // The name in KernelTable of kernels that host memory is computed with, and by how many threads; empty: a GPU's
  // compute.
  virtual std::string kernel_set() const { return {}; }
  virtual int num_threads() const { return 0; }
  // Those threads, for the engine's thread to use while nothing is computed; empty: there are none.
  virtual ParallelFor threads() { return {}; }
  // One line for the log: what computes.
  virtual std::string description() const = 0;
  // Of the checkpoint, to be logged once.
  virtual std::vector<std::string> warnings() const = 0;
  // What a post-mortem of a failed device needs; several lines.
  virtual std::string Dump() const { return {}; }
};

// What every backend is made from. `needs` lacks the weights and activations, which the backend adds.
struct BackendOptions {
  std::shared_ptr<const Checkpoint> checkpoint;  // null: random weights (common/model/synthetic_models.h)
  const ModelConfig* config = nullptr;           // must outlive the backend
  Dtype compute_dtype = Dtype::kBf16;
  Dtype kv_dtype = Dtype::kBf16;
  uint32_t max_context_tokens = 0;
  uint32_t prefill_chunk_tokens = 0;
  MemoryNeeds needs;               // with the prefill mode that was asked for
  bool paces_prompts = false;      // to the time between tokens of answers beside them
  bool offers_peer_links = false;  // makes room for one
  // Whether rows are selected where they are computed, on a GPU that has them all; nullopt: where no peer link can be.
  std::optional<bool> selects_in_place = std::nullopt;
  std::string synthetic_model = {};  // name of random weights
  std::string model_name = {};       // for messages
};

}  // namespace winnow
