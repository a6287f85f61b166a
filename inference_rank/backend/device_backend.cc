#include "inference_rank/backend/device_backend.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_format.h"
#include "common/base/gpu_kv_rows.h"
#include "inference_rank/backend/device_forward.h"
#include "inference_rank/backend/device_local_step.h"
#include "inference_rank/backend/device_memory.h"
#include "inference_rank/backend/device_peer_step_batch.h"
#include "inference_rank/backend/device_peer_step_link.h"
#include "inference_rank/backend/sharded_forward.h"
#include "inference_rank/backend/sharded_local_step.h"
#include "kernels/plugin/plugin.h"
#include "model/weights/device_weights.h"

namespace winnow {
namespace {

absl::Status CheckCompute(Dtype compute) {
  if (compute != Dtype::kBf16 && compute != Dtype::kF8) {
    return absl::UnimplementedError(
        absl::StrCat("on GPUs weights are bf16 or fp8, not ", DtypeName(compute), " (--compute)"));
  }
  return absl::OkStatus();
}

// What the process has on one GPU.
struct Gpu {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<DeviceWeights> weights;
  std::unique_ptr<device::DeviceMemory> slots, prefill_memory;
  std::unique_ptr<DeviceForward> forward;
};

std::string Ordinals(const std::vector<Gpu>& gpus) {
  if (gpus.size() == 1) return absl::StrCat("GPU ", gpus[0].device->ordinal());
  std::string text = "GPUs ";
  for (size_t i = 0; i < gpus.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : i + 1 == gpus.size() ? " and " : ", ", gpus[i].device->ordinal());
  }
  return text;
}

class DeviceBackend final : public Backend {
 public:
  static absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendOptions& options, std::span<const int> ordinals) {
    auto backend = std::unique_ptr<DeviceBackend>(new DeviceBackend());
    DeviceWeightOptions weights;
    weights.dtype = options.compute_dtype;
    weights.shard.count = static_cast<int>(ordinals.size());
    WINNOW_RETURN_IF_ERROR(CheckCompute(options.compute_dtype));
    WINNOW_RETURN_IF_ERROR(CheckKvRowsOnGpus(options.kv_dtype, weights.shard.count,
                                             options.needs.slot_host_memory_bytes, options.config->head_dim));
    WINNOW_RETURN_IF_ERROR(CheckSlotHostMemory(options, weights.shard.count));
    WINNOW_RETURN_IF_ERROR(Annotate(CheckDeviceModel(*options.config, weights), options.model_name));
    WINNOW_ASSIGN_OR_RETURN(backend->table_, device::LoadPlugin());
    WINNOW_RETURN_IF_ERROR(backend->Open(ordinals));
    WINNOW_RETURN_IF_ERROR(backend->Plan(options));
    WINNOW_RETURN_IF_ERROR(backend->Load(options, weights));
    return backend;
  }

  Forward& forward() override {
    if (sharded_ != nullptr) return *sharded_;
    return *gpus_[0].forward;
  }
  absl::StatusOr<SlotPool> NewSlotPool() override {
    std::vector<SlotPool::Part> parts;
    for (const Gpu& gpu : gpus_) {
      parts.push_back({.rows = static_cast<std::byte*>(gpu.slots->data()), .mover = &gpu.forward->row_mover()});
    }
    return SlotPool::OnDevices(plan_.forward.row_bytes, memory_plan_.slot_pages, std::move(parts),
                               memory_plan_.host_slot_pages);
  }
  PrefillRegion* prefill_region() override { return &*prefill_region_; }
  StepClient* step_client() override { return local_step_.get(); }
  absl::StatusOr<std::unique_ptr<PeerStepLink>> NewPeerLink(const KvShard& shard) override {
    WINNOW_RETURN_IF_ERROR(plan_.peer_link.status());
    const ModelConfig& config = gpus_[0].forward->layers().config();
    if (shard.num_layers != config.num_layers) {
      return absl::FailedPreconditionError("the cache rank holds a part of the layers, and a peer link carries all");
    }
    if (shard.num_kv_heads != config.num_kv_heads || shard.first_kv_head % config.num_kv_heads != 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "of a sequence the cache rank holds ", shard.num_kv_heads, " kv heads and a GPU of the inference rank ",
          config.num_kv_heads, ", and a peer link carries those of one GPU to one cache rank"));
    }
    const Gpu& gpu = gpus_[shard.first_kv_head / config.num_kv_heads];
    PeerStepShape shape = *plan_.peer_link;
    shape.shard = shard;
    std::shared_ptr<DevicePeerStepBatch> batch = peer_links_;
    if (batch == nullptr) {
      DevicePeerStepBatch::RunOnGpus run;
      if (sharded_ != nullptr) run = [this](const std::function<void(int)>& work) { sharded_->RunBeside(work); };
      WINNOW_ASSIGN_OR_RETURN(
          batch, DevicePeerStepBatch::Create(*gpu.device, *gpu.forward, *gpu.slots, *plan_.peer_link, std::move(run)));
      // Peer links of several GPUs join those of the cache ranks that hold the rest of the same sequences.
      if (sharded_ == nullptr) peer_links_ = batch;
    }
    WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<PeerStepLink> peer_link,
                            DevicePeerStepLink::Create(std::move(batch), shape));
    return peer_link;
  }
  const MemoryPlan& memory_plan() const override { return memory_plan_; }
  SlotTiers slot_tiers() const override { return TiersOf(plan_.needs, memory_plan_); }
  // Sums are added up in another order where GPUs share them.
  std::string numerics() const override {
    const device::DeviceInfo& info = gpus_[0].device->info();
    std::string text = absl::StrCat("cuda-", info.compute_major, ".", info.compute_minor, "/",
                                    DtypeName(gpus_[0].weights->dtype()), "/", DtypeName(plan_.forward.kv_dtype));
    if (gpus_.size() > 1) absl::StrAppend(&text, "/tp", gpus_.size());
    return text;
  }
  std::string description() const override {
    size_t pinned_bytes = stages_->pinned_bytes() + step_pinned_bytes_;
    std::string bus_ids;
    for (const Gpu& gpu : gpus_) {
      pinned_bytes += gpu.forward->pinned_bytes();
      absl::StrAppend(&bus_ids, bus_ids.empty() ? "" : " and ", gpu.device->info().pci_bus_id);
    }
    const char* const together = gpus_.size() > 1 ? ", which share the model's heads (tensor parallel)"
                                 : gpus_[0].forward->RunsBesideSteps()
                                     ? ", which computes prompts beside decode steps"
                                     : ", which computes prompts between decode steps";
    return absl::StrFormat("%s, %s, PCI %s, with %.1f MiB of pinned host memory%s", Ordinals(gpus_),
                           gpus_[0].device->info().name, bus_ids, static_cast<double>(pinned_bytes) / (1 << 20),
                           together);
  }
  std::vector<std::string> warnings() const override {
    std::vector<std::string> warnings = gpus_[0].weights->warnings();
    if (!no_peers_.ok()) {
      warnings.push_back(absl::StrCat(no_peers_.message(),
                                      ": what GPUs have computed in part is added up through host memory, which is "
                                      "slower"));
    }
    if (plan_.needs.slot_host_memory_bytes > 0 && memory_plan_.host_slot_pages == 0) {
      warnings.push_back(
          "--slot-host-memory: nothing of it is taken, as the slots that --max-running sequences can need fit the "
          "memory of the GPU, or rows of the server's selection are not selected in place");
    }
    return warnings;
  }
  std::string Dump() const override {
    const device::DriverVersions versions = table_->versions();
    std::string text = absl::StrCat("GPU failure\n  CUDA: runtime ", versions.runtime, ", driver ", versions.driver,
                                    "\n  memory: ", memory_plan_.ToString());
    for (const Gpu& gpu : gpus_) {
      const device::DeviceInfo& info = gpu.device->info();
      absl::StrAppend(&text, "\n  device: ", gpu.device->ordinal(), ", ", info.name, ", compute capability ",
                      info.compute_major, ".", info.compute_minor, ", PCI ", info.pci_bus_id,
                      "\n  error: ", gpu.forward->status().message(), "\n  last work: ", gpu.forward->LastWork(),
                      "\n  stream now: ", gpu.device->CheckLaunches().ToString());
    }
    return text;
  }

 private:
  int num_shards() const { return static_cast<int>(gpus_.size()); }

  absl::Status Open(std::span<const int> ordinals) {
    const std::string why = ordinals.size() > 1 ? absl::StrCat("--tensor-parallel=", ordinals.size()) : std::string();
    for (const int ordinal : ordinals) {
      absl::StatusOr<std::unique_ptr<device::Device>> device = table_->open_device(ordinal);
      if (!device.ok()) return why.empty() ? device.status() : Annotate(device.status(), why);
      gpus_.emplace_back().device = *std::move(device);
    }
    for (const Gpu& from : gpus_) {
      for (const Gpu& to : gpus_) {
        if (from.device->ordinal() == to.device->ordinal()) continue;
        if (absl::Status peers = from.device->EnablePeerAccess(to.device->ordinal()); !peers.ok()) {
          if (peers.code() != absl::StatusCode::kFailedPrecondition) return peers;
          no_peers_ = peers;
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Plan(const BackendOptions& options) {
    plan_ = PlanDeviceRank(*table_, options, num_shards(), no_peers_);
    plan_.needs.memory_name =
        absl::StrCat(gpus_.size() > 1 ? "the memory of each of " : "the memory of ", Ordinals(gpus_));
    uint64_t free = std::numeric_limits<uint64_t>::max();
    for (const Gpu& gpu : gpus_) free = std::min<uint64_t>(free, gpu.device->info().free_bytes);
    WINNOW_ASSIGN_OR_RETURN(memory_plan_, PlanMemory(plan_.needs, UsableGpuBytes(free)));
    plan_.forward.num_slots = memory_plan_.slot_pages * kSlotPageTokens;
    return absl::OkStatus();
  }

  absl::Status Load(const BackendOptions& options, const DeviceWeightOptions& of_all) {
    WINNOW_ASSIGN_OR_RETURN(stages_, PublishStages::Create(*gpus_[0].device, *options.config,
                                                           plan_.forward.max_prefill_tokens, plan_.forward.row_bytes));
    std::vector<std::byte*> prefill_memory;
    std::vector<DeviceForward*> shards;
    std::vector<uint32_t> first_slots;
    for (Gpu& gpu : gpus_) {
      DeviceWeightOptions weight_options = of_all;
      weight_options.shard.index = static_cast<int>(&gpu - gpus_.data());
      WINNOW_RETURN_IF_ERROR(LoadWeights(options, weight_options, gpu));
      WINNOW_ASSIGN_OR_RETURN(gpu.slots, AllocateSlots(*gpu.device));
      WINNOW_ASSIGN_OR_RETURN(gpu.prefill_memory, gpu.device->Allocate(memory_plan_.prefill_bytes));
      prefill_memory.push_back(static_cast<std::byte*>(gpu.prefill_memory->data()));
      WINNOW_ASSIGN_OR_RETURN(gpu.forward, DeviceForward::Create(*table_, *gpu.device, *gpu.weights, gpu.slots->data(),
                                                                 *stages_, plan_.forward));
      shards.push_back(gpu.forward.get());
      first_slots.push_back(static_cast<uint32_t>(weight_options.shard.index) * plan_.forward.num_slots);
    }
    prefill_region_.emplace(std::move(prefill_memory), memory_plan_.prefill_bytes);
    if (gpus_.size() > 1) {
      WINNOW_ASSIGN_OR_RETURN(sharded_, ShardedForward::Create(std::move(shards), first_slots));
    }
    return plan_.local_step.has_value() ? CreateLocalStep(options.needs.layout) : absl::OkStatus();
  }

  absl::Status CreateLocalStep(const KvLayout& layout) {
    plan_.local_step->num_slot_pages = memory_plan_.slot_pages;
    std::vector<std::unique_ptr<DeviceLocalStep>> steps;
    for (const Gpu& gpu : gpus_) {
      WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<DeviceLocalStep> step,
                              DeviceLocalStep::Create(*gpu.device, *gpu.forward, *gpu.slots, *plan_.local_step));
      step_pinned_bytes_ += step->pinned_bytes();
      steps.push_back(std::move(step));
    }
    if (steps.size() == 1) {
      local_step_ = std::move(steps[0]);
    } else {
      WINNOW_ASSIGN_OR_RETURN(local_step_, ShardedLocalStep::Create(std::move(steps), layout, *sharded_));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<device::DeviceMemory>> AllocateSlots(device::Device& device) {
    if (memory_plan_.host_slot_bytes == 0) return device.Allocate(memory_plan_.slot_bytes);
    auto slots = device.AllocateTiered(memory_plan_.slot_bytes, memory_plan_.host_slot_bytes);
    if (slots.ok()) return slots;
    return Annotate(slots.status(), absl::StrCat("--slot-host-memory: ", memory_plan_.host_slot_bytes,
                                                 " bytes of pinned host memory behind the GPU's slots"));
  }

  absl::Status LoadWeights(const BackendOptions& options, const DeviceWeightOptions& weight_options, Gpu& gpu) {
    if (options.checkpoint == nullptr) {
      WINNOW_ASSIGN_OR_RETURN(gpu.weights, DeviceWeights::Synthesize(*table_, *gpu.device, *options.config, /*seed=*/1,
                                                                     /*query_bias=*/false, weight_options));
    } else {
      WINNOW_ASSIGN_OR_RETURN(
          gpu.weights, DeviceWeights::Load(*table_, *gpu.device, *options.checkpoint, *options.config, weight_options));
    }
    return absl::OkStatus();
  }

  const device::DeviceTable* table_ = nullptr;
  MemoryPlan memory_plan_;
  DeviceRankPlan plan_;
  absl::Status no_peers_;  // of several GPUs: why they do not reach each other
  std::unique_ptr<PublishStages> stages_;
  std::vector<Gpu> gpus_;
  std::optional<PrefillRegion> prefill_region_;
  std::unique_ptr<ShardedForward> sharded_;  // null: one GPU
  std::unique_ptr<StepClient> local_step_;   // null: GPUs that do not reach each other
  size_t step_pinned_bytes_ = 0;
  std::shared_ptr<DevicePeerStepBatch>
      peer_links_;  // of the one GPU; null before the first peer link, and with several
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> NewDeviceBackend(const BackendOptions& options,
                                                          std::span<const int> ordinals) {
  return DeviceBackend::Create(options, ordinals);
}

bool CpuWouldDo(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

}  // namespace winnow
