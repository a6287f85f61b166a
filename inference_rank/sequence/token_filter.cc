#include "inference_rank/sequence/token_filter.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace winnow {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

// Of a token, in its word of a mask.
constexpr uint64_t Bit(uint32_t id) {
  return uint64_t{1} << (id % 64);
}

}  // namespace

TokenFilter::TokenFilter(const v1::SamplingParams& params, std::vector<uint32_t> end_token_ids,
                         std::shared_ptr<TokenGrammar> grammar)
    : min_tokens_(params.min_tokens()), ends_(std::move(end_token_ids)) {
  const auto allow = [&](uint32_t id) {
    if (id / 64 >= allowed_.size()) allowed_.resize(id / 64 + 1);
    allowed_[id / 64] |= Bit(id);
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
  return matcher_.has_value() || !bad_words_.empty() || !allowed_.empty() ||
         (token_index < min_tokens_ && !ends_.empty());
}

absl::Status TokenFilter::FillFromGrammar(std::span<uint64_t> mask) {
  WINNOW_ASSIGN_OR_RETURN(const TokenMask* const allowed, matcher_->Mask());
  const std::span<const uint64_t> words = allowed->words();
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = i < words.size() ? words[i] : 0;
  if (!matcher_->accepts()) return absl::OkStatus();
  for (const uint32_t id : ends_) {
    if (id / 64 < mask.size()) mask[id / 64] |= Bit(id);
  }
  return absl::OkStatus();
}

absl::Status TokenFilter::FillMask(std::span<uint64_t> mask, uint32_t vocab_size, uint32_t token_index) {
  if (matcher_.has_value()) {
    WINNOW_RETURN_IF_ERROR(FillFromGrammar(mask));
  } else {
    std::fill(mask.begin(), mask.end(), ~uint64_t{0});
  }
  if (!allowed_.empty()) {
    for (size_t i = 0; i < mask.size(); ++i) mask[i] &= i < allowed_.size() ? allowed_[i] : 0;
  }
  const auto forbid = [&](uint32_t id) {
    if (id / 64 < mask.size()) mask[id / 64] &= ~Bit(id);
  };
  for (const std::vector<uint32_t>& word : bad_words_) {
    const size_t before = word.size() - 1;
    if (before > last_.size()) continue;
    if (std::equal(word.begin(), word.end() - 1, last_.end() - static_cast<ptrdiff_t>(before))) forbid(word.back());
  }
  if (token_index < min_tokens_) std::for_each(ends_.begin(), ends_.end(), forbid);
  if (vocab_size % 64 != 0) mask.back() &= Bit(vocab_size) - 1;
  if (std::any_of(mask.begin(), mask.end(), [](uint64_t word) { return word != 0; })) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("after ", token_index,
                   " tokens no token may follow: the grammar, allowed_token_ids, bad_words and min_tokens leave none"));
}

absl::Status TokenFilter::Apply(std::span<float> logits, uint32_t token_index) {
  mask_.resize((logits.size() + 63) / 64);
  WINNOW_RETURN_IF_ERROR(FillMask(mask_, static_cast<uint32_t>(logits.size()), token_index));
  for (size_t i = 0; i < logits.size(); i += 64) {
    const uint64_t word = mask_[i / 64];
    if (word == ~uint64_t{0}) continue;
    const size_t end = std::min(logits.size(), i + 64);
    for (size_t id = i; id < end; ++id) {
      if ((word >> (id - i) & 1) == 0) logits[id] = kImpossible;
    }
  }
  return absl::OkStatus();
}

}  // namespace winnow
