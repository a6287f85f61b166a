#include "router/generation/limited_generation.h"

#include <gtest/gtest.h>

#include "router/generation/caller_model.h"

namespace winnow {
namespace {

// Keeps what was started; the test plays the ranks.
class RecordedGeneration : public Generation {
 public:
  class Handle : public GenerationHandle {
   public:
    explicit Handle(RecordedGeneration* owner) : owner_(owner) {}
    ~Handle() override { ++owner_->destroyed; }
    absl::StatusOr<GenerationFork> Fork(const ForkInput&, GenerationObserver* observer) override {
      owner_->observer = observer;
      GenerationFork fork;
      fork.handle = std::make_unique<Handle>(owner_);
      return fork;
    }

   private:
    RecordedGeneration* const owner_;
  };

  absl::StatusOr<std::unique_ptr<GenerationHandle>> Start(GenerationInput i, GenerationObserver* o) override {
    if (!refuse_with.ok()) return refuse_with;
    input = std::move(i);
    observer = o;
    return std::make_unique<Handle>(this);
  }

  absl::Status refuse_with;
  GenerationInput input;
  GenerationObserver* observer = nullptr;
  int destroyed = 0;
};

// Notes how many places were taken when the end was told, and destroys the handle from inside, as front ends may.
class EndingObserver : public GenerationObserver {
 public:
  explicit EndingObserver(const KeyAccount* account) : account_(account) {}
  void OnPromptProgress(const PromptProgress&) override { ++progresses; }
  void OnDelta(const TextDelta&) override { ++deltas; }
  void OnOutputEnd(const OutputEnd&) override {}
  void OnDone(const GenerationUsage&) override { End(); }
  void OnFailed(const absl::Status&) override { End(); }

  std::unique_ptr<GenerationHandle> handle;
  int deltas = 0, progresses = 0;
  int running_at_end = -1;

 private:
  void End() {
    running_at_end = static_cast<int>(account_->usage().running);
    handle = nullptr;
  }
  const KeyAccount* const account_;
};

class LimitedGenerationTest : public ::testing::Test {
 protected:
  LimitedGenerationTest() {
    ApiKey key;
    key.name = "alice";
    key.limits.max_concurrent = 1;
    key.limits.max_answer_tokens = 20;
    account_ = std::make_shared<KeyAccount>(key, KeyAccount::Clock::now());
  }
  GenerationInput Input() const {
    GenerationInput input;
    input.prompt_token_ids = {1, 2, 3};
    input.max_tokens = 8;
    input.caller = {.tenant = "alice", .account = account_};
    return input;
  }

  std::shared_ptr<KeyAccount> account_;
  RecordedGeneration inner_;
  LimitedGeneration limited_{&inner_};
};

TEST_F(LimitedGenerationTest, APlaceIsFreeWhenTheEndIsTold) {
  EndingObserver observer(account_.get());
  auto handle = limited_.Start(Input(), &observer);
  ASSERT_TRUE(handle.ok()) << handle.status();
  observer.handle = *std::move(handle);
  EXPECT_TRUE(absl::IsResourceExhausted(limited_.Start(Input(), &observer).status()));
  TextDelta delta;
  delta.tokens.resize(4);
  inner_.observer->OnDelta(delta);
  inner_.observer->OnDone({});
  EXPECT_EQ(observer.deltas, 1);
  EXPECT_EQ(observer.running_at_end, 0);
  EXPECT_EQ(inner_.destroyed, 1);
  EXPECT_EQ(account_->usage().prompt_tokens, 3u);
  EXPECT_EQ(account_->usage().answer_tokens, 4u);
  EXPECT_TRUE(limited_.Start(Input(), &observer).ok());
}

TEST_F(LimitedGenerationTest, ACancelledOrRefusedOneHoldsNoPlace) {
  EndingObserver observer(account_.get());
  { ASSERT_TRUE(limited_.Start(Input(), &observer).ok()); }
  EXPECT_EQ(account_->usage().running, 0u);
  inner_.refuse_with = absl::UnavailableError("no rank");
  EXPECT_TRUE(absl::IsUnavailable(limited_.Start(Input(), &observer).status()));
  EXPECT_EQ(account_->usage().running, 0u);
}

TEST_F(LimitedGenerationTest, ForksAreRequestsOfTheirOwn) {
  EndingObserver observer(account_.get());
  auto source = limited_.Start(Input(), &observer);
  ASSERT_TRUE(source.ok());
  ForkInput fork;
  fork.caller = Input().caller;
  EXPECT_TRUE(absl::IsResourceExhausted((*source)->Fork(fork, &observer).status()));
  ApiKey key = account_->key();
  key.limits.max_concurrent = 2;
  account_->Update(key, KeyAccount::Clock::now());
  auto forked = (*source)->Fork(fork, &observer);
  ASSERT_TRUE(forked.ok()) << forked.status();
  EXPECT_EQ(account_->usage().running, 2u);
  forked->handle = nullptr;
  EXPECT_EQ(account_->usage().running, 1u);
}

TEST_F(LimitedGenerationTest, CallersWithoutAnAccountHaveNoLimits) {
  EndingObserver observer(account_.get());
  GenerationInput input = Input();
  input.caller.account = nullptr;
  auto first = limited_.Start(input, &observer), second = limited_.Start(input, &observer);
  EXPECT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(inner_.observer, &observer) << "nothing stands between";
}

TEST_F(LimitedGenerationTest, RequestsThatNameNoLengthGetTheKeys) {
  const Caller alice = Input().caller;
  EXPECT_EQ(ModelFor(alice, {}).max_default_answer_tokens, 20u);
  EXPECT_EQ(ModelFor({}, {}).max_default_answer_tokens, ServedModel().max_default_answer_tokens);
}

TEST_F(LimitedGenerationTest, CountsWhenARankBeginsAndWhatOfThePromptWasCached) {
  for (const bool asked : {false, true}) {
    SCOPED_TRACE(asked);
    EndingObserver client(account_.get());
    GenerationInput input = Input();
    input.prompt_progress = asked;
    auto started = limited_.Start(std::move(input), &client);
    ASSERT_TRUE(started.ok());
    client.handle = *std::move(started);
    EXPECT_TRUE(inner_.input.prompt_progress) << "a rank's first word says when it begins";
    inner_.observer->OnPromptProgress({.computed_tokens = 2, .cached_tokens = 2, .prompt_tokens = 3});
    // After a failover, perhaps.
    inner_.observer->OnPromptProgress({.computed_tokens = 1, .cached_tokens = 1, .prompt_tokens = 3});
    EXPECT_EQ(client.progresses, asked ? 2 : 0) << "those who ask hear of it";
    inner_.observer->OnDone({});
  }
  EXPECT_EQ(account_->usage().cached_prompt_tokens, 4u);
  uint64_t begun = 0;
  for (const uint64_t count : account_->queue_seconds().counts()) begun += count;
  EXPECT_EQ(begun, 2u);
}

TEST_F(LimitedGenerationTest, WhatIsResumedBeganBefore) {
  EndingObserver client(account_.get());
  GenerationInput input = Input();
  input.resume = GenerationInput::Resume{};
  auto started = limited_.Start(std::move(input), &client);
  ASSERT_TRUE(started.ok());
  client.handle = *std::move(started);
  EXPECT_FALSE(inner_.input.prompt_progress);
  inner_.observer->OnDone({});
}

}  // namespace
}  // namespace winnow
