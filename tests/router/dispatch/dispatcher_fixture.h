#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "router/dispatch/dispatcher.h"
#include "tests/router/dispatch/scripted_rank.h"

namespace winnow::test {

// What becomes of a request: checks the observer's contract while it records.
class Recorder : public TokenObserver {
 public:
  void OnPromptProgress(uint32_t computed_tokens, uint32_t cached_tokens) override {
    std::lock_guard lock(mutex_);
    EXPECT_TRUE(ids_.empty());
    prompt_progress_.emplace_back(computed_tokens, cached_tokens);
  }
  void OnPromptTokens(const std::vector<v1::Token>& tokens) override {
    std::lock_guard lock(mutex_);
    EXPECT_TRUE(ids_.empty());
    for (const v1::Token& token : tokens) prompt_ids_.push_back(token.id());
  }
  void OnTokens(uint32_t first_index, const std::vector<v1::Token>& tokens) override {
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_);
    EXPECT_EQ(first_index, ids_.size());
    for (const v1::Token& token : tokens) ids_.push_back(token.id());
    changed_.notify_all();
  }
  void OnFinished(v1::FinishReason reason, const v1::SelectionStats&) override {
    {
      std::lock_guard lock(mutex_);
      reason_ = reason;
    }
    End(absl::OkStatus());
  }
  void OnFailed(const absl::Status& status) override { End(status); }

  std::vector<uint32_t> AwaitTokens(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return ids_.size() >= count; }));
    return ids_;
  }
  absl::Status AwaitEnd() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return ended_; }));
    return status_;
  }
  std::vector<uint32_t> ids() {
    std::lock_guard lock(mutex_);
    return ids_;
  }
  std::vector<std::pair<uint32_t, uint32_t>> prompt_progress() {
    std::lock_guard lock(mutex_);
    return prompt_progress_;
  }
  std::vector<uint32_t> prompt_ids() {
    std::lock_guard lock(mutex_);
    return prompt_ids_;
  }
  v1::FinishReason reason() {
    std::lock_guard lock(mutex_);
    return reason_;
  }

 private:
  void End(const absl::Status& status) {
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_) << "more than one terminal event";
    ended_ = true;
    status_ = status;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<uint32_t, uint32_t>> prompt_progress_;
  std::vector<uint32_t> prompt_ids_;
  std::vector<uint32_t> ids_;
  bool ended_ = false;
  v1::FinishReason reason_ = v1::FINISH_REASON_UNSPECIFIED;
  absl::Status status_;
};

inline v1::RegisterRequest Registration(const v1::Identity& identity) {
  v1::RegisterRequest request;
  *request.mutable_identity() = identity;
  if (identity.role() == v1::ROLE_INFERENCE_RANK) {
    request.mutable_limits()->set_vocab_size(100);
    request.mutable_limits()->set_max_context_tokens(1000);
  }
  return request;
}

inline v1::Identity CacheRank(const std::string& name, uint64_t incarnation = 7) {
  v1::Identity identity;
  identity.set_cluster("test");
  identity.set_role(v1::ROLE_CACHE_RANK);
  identity.set_rank(name);
  identity.set_incarnation(incarnation);
  identity.set_address("127.0.0.1:1");
  return identity;
}

// A dispatcher without ranks; tests let scripted ones join.
class DispatcherTest : public ::testing::Test {
 protected:
  void Join(const v1::Identity& identity) { ASSERT_TRUE(registry_.Register(Registration(identity)).ok()); }
  void Join(const v1::Identity& identity, v1::Phases phases, uint32_t decode_prefill_tokens = 0) {
    v1::RegisterRequest request = Registration(identity);
    request.set_phases(phases);
    request.set_decode_prefill_tokens(decode_prefill_tokens);
    ASSERT_TRUE(registry_.Register(request).ok());
  }
  void MakeDispatcher(DispatcherOptions options = {}) {
    dispatcher_ = std::make_unique<Dispatcher>(std::move(options), &registry_, &timers_);
  }
  // The same with ranks that are there from the start.
  void StartDispatcher(std::initializer_list<v1::Identity> ranks, DispatcherOptions options = {}) {
    for (const v1::Identity& identity : ranks) Join(identity);
    MakeDispatcher(std::move(options));
  }
  static TokenRequest Request(std::vector<uint32_t> prompt = {1, 2, 3}) {
    TokenRequest request;
    request.prompt_token_ids = std::move(prompt);
    request.sampling.set_seed(5);
    request.stopping.set_max_tokens(100);
    request.deadline = std::chrono::system_clock::now() + std::chrono::seconds(60);
    return request;
  }
  std::unique_ptr<TokenStream> Start(TokenRequest request, TokenObserver* observer) {
    auto stream = dispatcher_->Start(std::move(request), observer);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return stream.ok() ? *std::move(stream) : nullptr;
  }
  void ExpectNothingLeft() {
    EXPECT_EQ(dispatcher_->counters().running, 0);
    EXPECT_EQ(dispatcher_->counters().waiting, 0);
  }

  Registry registry_{{.cluster = "test"}};
  TimerQueue timers_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

}  // namespace winnow::test
