#include "router/keys/key_account.h"

#include <algorithm>

#include "router/keys/retry_after.h"

namespace winnow {
namespace {

// Nobody knows when an answer under way will end.
constexpr std::chrono::milliseconds kWaitForAnAnswer{1000};

}  // namespace

void KeyAccount::Update(const ApiKey& key, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  key_ = key;
  requests_.SetPerMinute(key.limits.requests_per_minute, now);
  tokens_.SetPerMinute(key.limits.tokens_per_minute, now);
}

ApiKey KeyAccount::key() const {
  const std::lock_guard lock(mutex_);
  return key_;
}

KeyUsage KeyAccount::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

absl::Status KeyAccount::CheckModel(std::string_view model) {
  const std::lock_guard lock(mutex_);
  const std::vector<std::string>& models = key_.limits.models;
  if (models.empty() || std::find(models.begin(), models.end(), model) != models.end()) return absl::OkStatus();
  return Refuse(KeyUsage::kModel, absl::PermissionDeniedError(absl::StrCat("model: the key ", key_.name,
                                                                           " may not use \"", AbslSv(model), "\"")));
}

absl::StatusOr<KeyAccount::Place> KeyAccount::Admit(const Request& request, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const ApiKeyLimits& limits = key_.limits;
  const auto never = [&](KeyUsage::Refusal refusal, const char* field, int64_t asked, int64_t limit) {
    return Refuse(refusal, absl::PermissionDeniedError(absl::StrCat(field, ": ", asked, "; requests with the key ",
                                                                    key_.name, " may have at most ", limit)));
  };
  if (request.priority > limits.max_priority) {
    return never(KeyUsage::kPriority, "priority", request.priority, limits.max_priority);
  }
  if (limits.max_prompt_tokens > 0 && request.prompt_tokens > limits.max_prompt_tokens) {
    return never(KeyUsage::kPromptTokens, "prompt tokens", request.prompt_tokens, limits.max_prompt_tokens);
  }
  if (limits.max_answer_tokens > 0 && request.answer_tokens > limits.max_answer_tokens) {
    return never(KeyUsage::kAnswerTokens, "max_tokens", request.answer_tokens, limits.max_answer_tokens);
  }
  if (limits.max_concurrent > 0 && request.samples > limits.max_concurrent) {
    return never(KeyUsage::kConcurrency, "n", request.samples, limits.max_concurrent);
  }
  if (limits.max_concurrent > 0 && usage_.running + request.samples > limits.max_concurrent) {
    return Refuse(
        KeyUsage::kConcurrency,
        ExhaustedFor(kWaitForAnAnswer, absl::StrCat("the key ", key_.name, " has ", usage_.running,
                                                    " answers under way, of at most ", limits.max_concurrent)));
  }
  if (const auto wait = requests_.WaitFor(1, now); wait.count() > 0) {
    return Refuse(KeyUsage::kRequestRate,
                  ExhaustedFor(wait, absl::StrCat("the key ", key_.name, " has used its ", limits.requests_per_minute,
                                                  " requests per minute")));
  }
  if (const auto wait = tokens_.WaitFor(1, now); wait.count() > 0) {
    return Refuse(KeyUsage::kTokenRate,
                  ExhaustedFor(wait, absl::StrCat("the key ", key_.name, " has used its ", limits.tokens_per_minute,
                                                  " tokens per minute")));
  }
  requests_.Take(1, now);
  tokens_.Take(request.prompt_tokens, now);
  ++usage_.admitted;
  usage_.prompt_tokens += request.prompt_tokens;
  usage_.running += request.samples;
  return Place(shared_from_this(), request.samples);
}

absl::Status KeyAccount::Refuse(KeyUsage::Refusal refusal, absl::Status status) {
  ++usage_.refused[refusal];
  return status;
}

void KeyAccount::CountBeginning(std::chrono::duration<double> queued, uint32_t cached_prompt_tokens) {
  queue_seconds_.Observe(queued.count());
  const std::lock_guard lock(mutex_);
  usage_.cached_prompt_tokens += cached_prompt_tokens;
}

void KeyAccount::CountAnswer(uint32_t tokens, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  tokens_.Take(tokens, now);
  usage_.answer_tokens += tokens;
}

void KeyAccount::Leave(uint32_t samples) {
  const std::lock_guard lock(mutex_);
  usage_.running -= samples;
}

}  // namespace winnow
