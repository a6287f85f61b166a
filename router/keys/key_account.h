#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/metrics/atomic_histogram.h"
#include "router/keys/api_key.h"
#include "router/keys/rate_limit.h"

namespace winnow {

// What became of requests with a key, for metrics.
struct KeyUsage {
  enum Refusal {
    kRequestRate,
    kTokenRate,
    kConcurrency,
    kPriority,
    kPromptTokens,
    kAnswerTokens,
    kModel,
    kNumRefusals
  };
  static constexpr std::array<std::string_view, kNumRefusals> kRefusalNames = {
      "request_rate", "token_rate", "concurrency", "priority", "prompt_tokens", "answer_tokens", "model"};

  uint64_t admitted = 0;  // prompts
  std::array<uint64_t, kNumRefusals> refused{};
  uint64_t prompt_tokens = 0;
  uint64_t cached_prompt_tokens = 0;  // of prompt_tokens, in prompts that have begun
  uint64_t answer_tokens = 0;
  uint32_t running = 0;  // samples
};

// A key's limits and what is used of them. Thread-safe; it outlives the key while requests of it are under way.
class KeyAccount : public std::enable_shared_from_this<KeyAccount> {
 public:
  using Clock = RateLimit::Clock;

  KeyAccount(const ApiKey& key, Clock::time_point now) { Update(key, now); }

  // The same key, perhaps with other limits.
  void Update(const ApiKey& key, Clock::time_point now);
  ApiKey key() const;
  KeyUsage usage() const;
  // Of prompts that have begun: seconds from their admission to then.
  const AtomicHistogram& queue_seconds() const { return queue_seconds_; }

  // PERMISSION_DENIED where the key may not use the model of that name.
  absl::Status CheckModel(std::string_view model);

  // What one prompt asks for.
  struct Request {
    uint32_t samples = 1;
    uint32_t prompt_tokens = 0;
    uint32_t answer_tokens = 0;  // at most, of each sample
    int32_t priority = 0;
  };

  // An admitted request's place among those under way, until it is destroyed.
  class Place {
   public:
    Place() = default;
    Place(std::shared_ptr<KeyAccount> account, uint32_t samples) : account_(std::move(account)), samples_(samples) {}
    Place(Place&& other) noexcept = default;
    Place& operator=(Place&& other) noexcept {
      std::swap(account_, other.account_);
      std::swap(samples_, other.samples_);
      return *this;
    }
    ~Place() {
      if (account_) account_->Leave(samples_);
    }
    // A rank has begun with the prompt, at last.
    void CountBeginning(std::chrono::duration<double> queued, uint32_t cached_prompt_tokens) {
      if (account_) account_->CountBeginning(queued, cached_prompt_tokens);
    }
    void CountAnswer(uint32_t tokens, Clock::time_point now) {
      if (account_) account_->CountAnswer(tokens, now);
    }

   private:
    std::shared_ptr<KeyAccount> account_;
    uint32_t samples_ = 0;
  };

  // Counts the request and its prompt. PERMISSION_DENIED for what the key may never ask for, RESOURCE_EXHAUSTED, with
  // RetryAfter, for what it may ask for later; what is refused takes nothing of its rates.
  absl::StatusOr<Place> Admit(const Request& request, Clock::time_point now);

 private:
  absl::Status Refuse(KeyUsage::Refusal refusal, absl::Status status);  // mutex_ held
  void CountBeginning(std::chrono::duration<double> queued, uint32_t cached_prompt_tokens);
  void CountAnswer(uint32_t tokens, Clock::time_point now);
  void Leave(uint32_t samples);

  static constexpr std::array kQueueSecondsBounds = {0.001, 0.005, 0.01, 0.05, 0.1,  0.25,  0.5,  1.0,
                                                     2.5,   5.0,   10.0, 30.0, 60.0, 120.0, 300.0};
  AtomicHistogram queue_seconds_{kQueueSecondsBounds};

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  ApiKey key_;
  RateLimit requests_;
  RateLimit tokens_;
  KeyUsage usage_;
};

}  // namespace winnow
