#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "winnow/v1/rank.pb.h"

namespace winnow {

// How likely each token of a prompt was, for requests that ask for it: gathered token by token and told in batches.
class PromptScores {
 public:
  explicit PromptScores(uint32_t top_logprobs) : top_logprobs_(top_logprobs) {}

  // The prompt's token `index`, and the logits of the position before it.
  void Add(uint32_t index, uint32_t token_id, std::span<const float> logits);
  // A batch that is due: a full one, or with `last` whatever there is.
  std::optional<v1::DispatchResponse::PromptTokens> TakeBatch(bool last);

 private:
  const uint32_t top_logprobs_;
  v1::DispatchResponse::PromptTokens batch_;
};

}  // namespace winnow
