#pragma once
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "inference_rank/memory/prefill_arena.h"
#include "inference_rank/memory/working_set.h"
#include "model/transformer.h"

namespace winnow {

// The forward pass alone, in this process and without cache rank: what a served request would cost if scheduling, data
// plane and HTTP were free. Rows are resident, attention is dense.
class EngineAlone {
 public:
  struct Options {
    int threads = 2;
    uint32_t chunk_tokens = 512;
    uint32_t max_context_tokens = 32768;
    uint32_t decode_tokens = 64;  // per decode measurement: the context grows by as many
  };

  static absl::StatusOr<std::unique_ptr<EngineAlone>> Load(const std::string& model_dir, const Options& options);

  const KernelTable& kernels() const { return *kernels_; }
  Executor& executor() { return *executor_; }
  size_t weight_bytes() const { return weights_->memory().packed_bytes(); }  // that a decode step reads
  const ModelConfig& config() const { return config_; }
  const KvLayout& layout() const { return layout_; }

  // Computes a prompt of `context` made-up tokens `repeats` times and keeps its rows; seconds of the fastest.
  double PrefillSeconds(uint32_t context, int repeats);
  // Decodes from the end of the last prompt, `batch` sequences at once, for at least `seconds`; median seconds of a
  // step.
  double DecodeStepSeconds(uint32_t batch, double seconds);

 private:
  EngineAlone(const Options& options, ModelConfig config, const KernelTable* kernels);

  const Options options_;
  const ModelConfig config_;
  const KvLayout layout_;
  const KernelTable* const kernels_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<PrefillArena> arena_;
  uint32_t context_tokens_ = 0;  // in the arena
};

}  // namespace winnow
