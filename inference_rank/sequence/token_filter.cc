#include "inference_rank/sequence/token_filter.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace winnow {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

}  // namespace

TokenFilter::TokenFilter(const v1::SamplingParams& params, std::vector<uint32_t> end_token_ids,
                         std::shared_ptr<TokenGrammar> grammar)
    : min_tokens_(params.min_tokens()), ends_(std::move(end_token_ids)) {
  const auto allow = [&](uint32_t id) {
    if (id >= is_allowed_.size()) is_allowed_.resize(id + 1);
    is_allowed_[id] = true;
  };
  if (!params.allowed_token_ids().empty()) {
    for (const uint32_t id : params.allowed_token_ids()) allow(id);
    for (const uint32_t id : ends_) allow(id);
  }
  for (const v1::TokenSequence& word : params.bad_words()) {
    if (word.token_ids().empty()) continue;
    bad_words_.emplace_back(word.token_ids().begin(), word.token_ids().end());
    num_last_ = std::max(num_last_, bad_words_.back().size() - 1);
  }
  if (grammar != nullptr) matcher_.emplace(std::move(grammar));
}

void TokenFilter::Observe(uint32_t token_id) {
  if (num_last_ > 0) {
    if (last_.size() == num_last_) last_.erase(last_.begin());
    last_.push_back(token_id);
  }
  if (matcher_.has_value()) matcher_->Advance(token_id);
}

bool TokenFilter::Restricts(uint32_t token_index) const {
  return matcher_.has_value() || !bad_words_.empty() || !is_allowed_.empty() ||
         (token_index < min_tokens_ && !ends_.empty());
}

absl::Status TokenFilter::ApplyGrammar(std::span<float> logits) {
  std::vector<std::pair<uint32_t, float>> ends;
  for (const uint32_t id : ends_) {
    if (matcher_->accepts() && id < logits.size()) ends.emplace_back(id, logits[id]);
  }
  WINNOW_ASSIGN_OR_RETURN(const TokenMask* const mask, matcher_->Mask());
  const std::span<const uint64_t> words = mask->words();
  for (size_t i = 0; i < logits.size(); i += 64) {
    const uint64_t word = i / 64 < words.size() ? words[i / 64] : 0;
    if (word == ~uint64_t{0}) continue;
    const size_t end = std::min(logits.size(), i + 64);
    for (size_t id = i; id < end; ++id) {
      if ((word >> (id - i) & 1) == 0) logits[id] = kImpossible;
    }
  }
  for (const auto& [id, logit] : ends) logits[id] = logit;
  return absl::OkStatus();
}

void TokenFilter::ApplyBadWords(std::span<float> logits) const {
  for (const std::vector<uint32_t>& word : bad_words_) {
    const size_t before = word.size() - 1;
    if (before > last_.size() || word.back() >= logits.size()) continue;
    if (std::equal(word.begin(), word.end() - 1, last_.end() - static_cast<ptrdiff_t>(before))) {
      logits[word.back()] = kImpossible;
    }
  }
}

absl::Status TokenFilter::Apply(std::span<float> logits, uint32_t token_index) {
  if (matcher_.has_value()) WINNOW_RETURN_IF_ERROR(ApplyGrammar(logits));
  if (!is_allowed_.empty()) {
    for (size_t id = 0; id < logits.size(); ++id) {
      if (id >= is_allowed_.size() || !is_allowed_[id]) logits[id] = kImpossible;
    }
  }
  ApplyBadWords(logits);
  if (token_index < min_tokens_) {
    for (const uint32_t id : ends_) {
      if (id < logits.size()) logits[id] = kImpossible;
    }
  }
  if (std::any_of(logits.begin(), logits.end(), [](float logit) { return logit > kImpossible; })) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("after ", token_index,
                   " tokens no token may follow: the grammar, allowed_token_ids, bad_words and min_tokens leave none"));
}

}  // namespace winnow
