#include "inference_rank/sequence/prompt_scores.h"

#include <algorithm>
#include <utility>

#include "inference_rank/sequence/sampler.h"

namespace winnow {
namespace {

// With twenty alternatives each some 70 KiB: far below the largest message.
constexpr int kBatchTokens = 256;

}  // namespace

void PromptScores::Add(uint32_t index, uint32_t token_id, std::span<const float> logits) {
  if (batch_.tokens().empty()) batch_.set_first_index(index);
  v1::Token& token = *batch_.add_tokens();
  token.set_id(token_id);
  FillLogprobs(logits, top_logprobs_, &token);
  const float own = logits[token_id];
  token.set_rank(
      static_cast<uint32_t>(std::count_if(logits.begin(), logits.end(), [own](float logit) { return logit >= own; })));
}

std::optional<v1::DispatchResponse::PromptTokens> PromptScores::TakeBatch(bool last) {
  if (batch_.tokens().empty() || (!last && batch_.tokens_size() < kBatchTokens)) return std::nullopt;
  return std::exchange(batch_, {});
}

}  // namespace winnow
