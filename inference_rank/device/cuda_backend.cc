#include "inference_rank/device/cuda_backend.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "inference_rank/device/cuda_decode_lane.h"
#include "inference_rank/device/cuda_forward.h"
#include "kernels/cuda/plugin.h"
#include "weights/device_weights.h"

namespace winnow {
namespace {

// For CUDA itself: kernels, cuBLASLt's, page tables.
constexpr uint64_t kReservedBytes = uint64_t{1} << 30;

absl::Status CheckDtypes(Dtype compute, Dtype kv) {
  if (compute != Dtype::kBf16 && compute != Dtype::kF8) {
    return absl::UnimplementedError(
        absl::StrCat("on GPUs weights are bf16 or fp8, not ", DtypeName(compute), " (--compute)"));
  }
  if (kv != Dtype::kBf16) {
    return absl::UnimplementedError(absl::StrCat("on GPUs KV rows are bf16, not ", DtypeName(kv), " (--kv-dtype)"));
  }
  return absl::OkStatus();
}

class CudaBackend final : public Backend {
 public:
  static absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendOptions& options, int ordinal) {
    const ModelConfig& config = *options.config;
    DeviceWeightOptions weight_options;
    weight_options.dtype = options.compute_dtype;
    WINNOW_RETURN_IF_ERROR(CheckDtypes(options.compute_dtype, options.kv_dtype));
    WINNOW_RETURN_IF_ERROR(CheckDeviceModel(config, weight_options));
    auto backend = std::unique_ptr<CudaBackend>(new CudaBackend());
    WINNOW_ASSIGN_OR_RETURN(backend->table_, cuda::LoadPlugin());
    WINNOW_ASSIGN_OR_RETURN(backend->device_, backend->table_->open_device(ordinal));
    WINNOW_RETURN_IF_ERROR(backend->Plan(options, weight_options));
    WINNOW_RETURN_IF_ERROR(backend->Load(options, weight_options));
    const cuda::DeviceInfo& info = backend->device_->info();
    backend->numerics_ = absl::StrCat("cuda-", info.compute_major, ".", info.compute_minor, "/",
                                      DtypeName(options.compute_dtype), "/", DtypeName(options.kv_dtype));
    return backend;
  }

  Forward& forward() override { return *forward_; }
  absl::StatusOr<SlotPool> NewSlotPool() override {
    return SlotPool::OnDevice(forward_options_.row_bytes, memory_plan_.slot_pages, slots_->data(),
                              forward_->row_mover());
  }
  PrefillRegion* prefill_region() override { return &*prefill_region_; }
  absl::StatusOr<std::unique_ptr<DecodeLane>> NewLane() override {
    WINNOW_RETURN_IF_ERROR(lane_shape_.status());
    WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<DecodeLane> lane,
                            CudaDecodeLane::Create(*device_, *forward_, *slots_, *lane_shape_));
    return lane;
  }
  const MemoryPlan& memory_plan() const override { return memory_plan_; }
  std::string numerics() const override { return numerics_; }
  std::string description() const override {
    const cuda::DeviceInfo& info = device_->info();
    return absl::StrFormat("GPU %d, %s, PCI %s, with %.1f MiB of pinned host memory", device_->ordinal(), info.name,
                           info.pci_bus_id, static_cast<double>(forward_->pinned_bytes()) / (1 << 20));
  }
  std::vector<std::string> warnings() const override { return weights_->warnings(); }
  std::string Dump() const override {
    const cuda::DeviceInfo& info = device_->info();
    const cuda::CudaVersions versions = table_->versions();
    return absl::StrCat("GPU failure\n  error: ", forward_->status().message(), "\n  last work: ", forward_->LastWork(),
                        "\n  device: ", device_->ordinal(), ", ", info.name, ", compute capability ",
                        info.compute_major, ".", info.compute_minor, ", PCI ", info.pci_bus_id, "\n  CUDA: runtime ",
                        versions.runtime, ", driver ", versions.driver, "\n  memory: ", memory_plan_.ToString(),
                        "\n  stream now: ", device_->CheckLaunches().ToString());
  }

 private:
  absl::Status Plan(const BackendOptions& options, const DeviceWeightOptions& weight_options) {
    const ModelConfig& config = *options.config;
    forward_options_ = {.max_prefill_tokens = static_cast<int>(options.prefill_chunk_tokens),
                        .max_list_rows = options.max_context_tokens + kBlockTokens,
                        .row_bytes = options.needs.layout.row_bytes()};
    PlanLane(options);
    MemoryNeeds needs = options.needs;
    needs.weights_bytes = DeviceWeightBytes(*table_, config, weight_options);
    needs.activation_bytes = CudaForward::ActivationBytes(*table_, config, forward_options_);
    if (lane_shape_.ok()) needs.activation_bytes += CudaDecodeLane::DeviceBytes(*lane_shape_, config);
    needs.memory_name = absl::StrCat("the memory of GPU ", device_->ordinal());
    needs.is_exclusive = true;
    const uint64_t free = device_->info().free_bytes;
    WINNOW_ASSIGN_OR_RETURN(memory_plan_, PlanMemory(needs, free > kReservedBytes ? free - kReservedBytes : 0));
    forward_options_.num_slots = memory_plan_.slot_pages * kSlotPageTokens;
    return absl::OkStatus();
  }

  void PlanLane(const BackendOptions& options) {
    if (!options.offers_lanes) return;
    if (table_->device_count() < 2) {
      lane_shape_ = absl::FailedPreconditionError("there is one GPU alone");
      return;
    }
    const int seats = static_cast<int>(std::min<uint32_t>(options.needs.max_running, kMaxDecodeRows));
    lane_shape_ = CudaDecodeLane::Complete({.spec = options.needs.selection,
                                            .max_rows = seats,
                                            .hidden_size = 0,
                                            .max_positions = options.max_context_tokens,
                                            .pages_per_list = 0,
                                            .synthetic_model = options.synthetic_model},
                                           *options.config);
    if (lane_shape_.ok()) {
      forward_options_.lane_list_rows = CudaDecodeLane::MaxListRows(*lane_shape_, *options.config);
    }
  }

  absl::Status Load(const BackendOptions& options, const DeviceWeightOptions& weight_options) {
    if (options.checkpoint == nullptr) {
      WINNOW_ASSIGN_OR_RETURN(weights_, DeviceWeights::Synthesize(*table_, *device_, *options.config, /*seed=*/1,
                                                                  /*query_bias=*/false, weight_options));
    } else {
      WINNOW_ASSIGN_OR_RETURN(
          weights_, DeviceWeights::Load(*table_, *device_, *options.checkpoint, *options.config, weight_options));
    }
    WINNOW_ASSIGN_OR_RETURN(slots_, device_->Allocate(memory_plan_.slot_bytes));
    WINNOW_ASSIGN_OR_RETURN(prefill_memory_, device_->Allocate(memory_plan_.prefill_bytes));
    prefill_region_.emplace(prefill_memory_->data(), prefill_memory_->bytes());
    WINNOW_ASSIGN_OR_RETURN(forward_,
                            CudaForward::Create(*table_, *device_, *weights_, slots_->data(), forward_options_));
    return absl::OkStatus();
  }

  const cuda::CudaTable* table_ = nullptr;
  std::unique_ptr<cuda::Device> device_;
  MemoryPlan memory_plan_;
  std::string numerics_;
  CudaForward::Options forward_options_;
  absl::StatusOr<DecodeLaneShape> lane_shape_ = absl::FailedPreconditionError("frames alone were asked for");
  std::unique_ptr<DeviceWeights> weights_;
  std::unique_ptr<cuda::DeviceMemory> slots_, prefill_memory_;
  std::optional<PrefillRegion> prefill_region_;
  std::unique_ptr<CudaForward> forward_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> NewCudaBackend(const BackendOptions& options, int ordinal) {
  return CudaBackend::Create(options, ordinal);
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
