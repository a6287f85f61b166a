#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cache_rank/select/predictor/query_projection.h"
#include "common/base/status.h"
#include "common/model/model_config.h"
#include "kernels/kernel_table.h"
#include "model/weights/weights.h"
#include "router/generation/model_text.h"
#include "tools/bench/tasks/task_prompt.h"

namespace winnow {

// A prompt and its right answer in token ids.
struct TokenPrompt {
  std::vector<uint32_t> prompt;  // a whole chat prompt, up to where the answer begins
  std::vector<uint32_t> answer;  // the end token included
};

// What all workers share of a model: weights, tokenizer, kernels. Const and thread-safe.
class QualityModel {
 public:
  // `with_projection`: also what a cache rank needs to project queries itself.
  static absl::StatusOr<std::unique_ptr<QualityModel>> Load(const std::string& model_dir, int threads,
                                                            bool with_projection);

  const ModelConfig& config() const { return config_; }
  KvLayout layout() const { return config_.kv_layout(Dtype::kBf16); }
  const KernelTable& kernels() const { return *kernels_; }
  const ModelWeights& weights() const { return *weights_; }
  const std::shared_ptr<const QueryProjection>& projection() const { return projection_; }  // may be null
  const std::string& digest() const { return digest_; }

  // At most `max_answer_tokens` of the answer, 0 = all of it. INVALID_ARGUMENT when prompt and answer exceed the
  // model's context.
  absl::StatusOr<TokenPrompt> Tokenize(const TaskPrompt& prompt, uint32_t max_answer_tokens) const;

 private:
  QualityModel() = default;

  ModelConfig config_;
  const KernelTable* kernels_ = nullptr;
  std::unique_ptr<ModelWeights> weights_;
  std::shared_ptr<const QueryProjection> projection_;
  std::unique_ptr<ModelText> text_;
  std::string digest_;
};

}  // namespace winnow
