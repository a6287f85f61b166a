#include "inference_rank/backend/cpu_backend.h"

#include <algorithm>

#include "inference_rank/backend/cpu_memory.h"
#include "kernels/parallel_for.h"
#include "model/transformer.h"
#include "model/weights/weights.h"

namespace winnow {
namespace {

class CpuBackend final : public Backend {
 public:
  static absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendOptions& options, const std::string& isa,
                                                         int num_threads) {
    if (options.checkpoint == nullptr) {
      return absl::UnimplementedError("random weights are made on GPUs alone: a synthetic model needs --device=cuda");
    }
    auto backend = std::unique_ptr<CpuBackend>(new CpuBackend());
    const ModelConfig& config = *options.config;
    const absl::StatusOr<const KernelTable*> kernels = CpuKernels(isa);
    if (!kernels.ok()) return Annotate(kernels.status(), "--isa");
    backend->kernels_ = *kernels;
    WINNOW_RETURN_IF_ERROR(options.checkpoint->Find("model.embed_tokens.weight").status());
    WINNOW_RETURN_IF_ERROR(CheckSlotHostMemoryOfCpu(options.needs.slot_host_memory_bytes));
    const MemoryNeeds needs = CpuMemoryNeeds(options);
    WINNOW_ASSIGN_OR_RETURN(backend->memory_plan_, PlanMemory(needs, AvailableMemoryBytes()));
    backend->row_bytes_ = needs.layout.row_bytes();
    backend->executor_ = backend->kernels_->new_executor(num_threads);
    WINNOW_ASSIGN_OR_RETURN(backend->weights_, ModelWeights::Load(options.checkpoint, config, *backend->kernels_,
                                                                  {.compute_dtype = options.compute_dtype}));
    const uint32_t longest_list = options.max_context_tokens + kBlockTokens;
    backend->transformer_ = std::make_unique<Transformer>(
        config, *backend->weights_, *backend->kernels_, *backend->executor_, options.kv_dtype,
        static_cast<int>(options.prefill_chunk_tokens), std::min<uint32_t>(longest_list, 16384));
    backend->numerics_ = absl::StrCat(AbslSv(backend->kernels_->name), "/", DtypeName(options.compute_dtype), "/",
                                      DtypeName(options.kv_dtype));
    return backend;
  }

  Forward& forward() override { return *transformer_; }
  absl::StatusOr<SlotPool> NewSlotPool() override {
    WINNOW_ASSIGN_OR_RETURN(SlotPool slots, SlotPool::Create(row_bytes_, memory_plan_.slot_pages));
    transformer_->set_slot_pool(slots.rows());
    return slots;
  }
  const MemoryPlan& memory_plan() const override { return memory_plan_; }
  std::string numerics() const override { return numerics_; }
  std::string kernel_set() const override { return std::string(kernels_->name); }
  int num_threads() const override { return kernels_->num_workers(*executor_); }
  ParallelFor threads() override { return ParallelForOn(*kernels_, *executor_); }
  std::string description() const override { return absl::StrCat("CPU, ", AbslSv(kernels_->name), " kernels"); }
  std::vector<std::string> warnings() const override { return weights_->warnings(); }

 private:
  const KernelTable* kernels_ = nullptr;
  size_t row_bytes_ = 0;
  MemoryPlan memory_plan_;
  std::string numerics_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Transformer> transformer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> NewCpuBackend(const BackendOptions& options, const std::string& isa,
                                                       int num_threads) {
  return CpuBackend::Create(options, isa, num_threads);
}

}  // namespace winnow
