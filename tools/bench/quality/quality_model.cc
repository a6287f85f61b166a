#include "tools/bench/quality/quality_model.h"

#include "common/base/json.h"
#include "common/model/checkpoint.h"

namespace winnow {

absl::StatusOr<std::unique_ptr<QualityModel>> QualityModel::Load(const std::string& model_dir, int threads,
                                                                 bool with_projection) {
  std::unique_ptr<QualityModel> model(new QualityModel);
  WINNOW_ASSIGN_OR_RETURN(model->config_, LoadModelConfig(model_dir));
  if (model->config_.eos_token_ids.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(model_dir, ": names no end token, so that answers have no end"));
  }
  WINNOW_ASSIGN_OR_RETURN(model->text_, ModelText::Load(model_dir));
  WINNOW_ASSIGN_OR_RETURN(model->kernels_, CpuKernels());
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> opened, Checkpoint::Open(model_dir));
  const std::shared_ptr<const Checkpoint> checkpoint = std::move(opened);
  model->digest_ = checkpoint->Digest();
  WINNOW_ASSIGN_OR_RETURN(model->weights_,
                          ModelWeights::Load(checkpoint, model->config_, *model->kernels_, {.num_threads = threads}));
  if (with_projection) {
    WINNOW_ASSIGN_OR_RETURN(model->projection_,
                            QueryProjection::Load(model_dir, *model->kernels_, Dtype::kBf16, threads));
  }
  return model;
}

absl::StatusOr<TokenPrompt> QualityModel::Tokenize(const TaskPrompt& prompt, uint32_t max_answer_tokens) const {
  const nlohmann::json messages = {{{"role", "user"}, {"content", prompt.prompt}}};
  WINNOW_ASSIGN_OR_RETURN(const std::string chat,
                          text_->RenderChat(messages, /*add_generation_prompt=*/true, nlohmann::json::object()));
  TokenPrompt tokens;
  WINNOW_ASSIGN_OR_RETURN(tokens.prompt, text_->Encode(chat, /*add_special_tokens=*/false));
  WINNOW_ASSIGN_OR_RETURN(tokens.answer, text_->Encode(prompt.answer, /*add_special_tokens=*/false));
  tokens.answer.push_back(config_.eos_token_ids.front());
  if (max_answer_tokens > 0 && tokens.answer.size() > max_answer_tokens) tokens.answer.resize(max_answer_tokens);
  const size_t length = tokens.prompt.size() + tokens.answer.size();
  if (length > static_cast<size_t>(config_.max_context_tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt ", prompt.id, ": ", length, " tokens exceed the model's ", config_.max_context_tokens));
  }
  return tokens;
}

}  // namespace winnow
