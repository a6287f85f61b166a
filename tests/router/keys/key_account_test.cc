#include "router/keys/key_account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/keys/retry_after.h"

namespace winnow {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class KeyAccountTest : public ::testing::Test {
 protected:
  void Limit(ApiKeyLimits limits) {
    ApiKey key;
    key.name = "alice";
    key.limits = std::move(limits);
    account_ = std::make_shared<KeyAccount>(key, now_);
  }
  // The status of a request that ends at once.
  absl::Status Ask(const KeyAccount::Request& request = {}) { return account_->Admit(request, now_).status(); }

  KeyAccount::Clock::time_point now_ = KeyAccount::Clock::now();
  std::shared_ptr<KeyAccount> account_;
};

TEST_F(KeyAccountTest, WithoutLimitsEverythingIsAdmitted) {
  Limit({});
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(Ask({.samples = 100, .prompt_tokens = 1 << 20, .answer_tokens = 1 << 20, .priority = 100}).ok());
  }
  EXPECT_TRUE(account_->CheckModel("any").ok());
  EXPECT_EQ(account_->usage().admitted, 1000u);
  EXPECT_EQ(account_->usage().running, 0u);
}

TEST_F(KeyAccountTest, RequestsBeyondTheRateWaitUntilItAllowsThem) {
  Limit({.requests_per_minute = 6, .models = {}});  // one in ten seconds
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(Ask().ok()) << "a minute's worth may come at once";
  const absl::Status refused = Ask();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("alice has used its 6 requests per minute; try again in 11 s"));
  EXPECT_EQ(RetryAfter(refused), 11);
  now_ += seconds(9);
  EXPECT_FALSE(Ask().ok());
  now_ += seconds(1) + std::chrono::milliseconds(1);
  EXPECT_TRUE(Ask().ok());
  EXPECT_FALSE(Ask().ok());
  now_ += seconds(3600);
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(Ask().ok());
  EXPECT_FALSE(Ask().ok()) << "what was not used for an hour is not saved up";
  EXPECT_EQ(account_->usage().refused[KeyUsage::kRequestRate], 4u);
}

TEST_F(KeyAccountTest, TokensBeyondTheRateAreADebt) {
  Limit({.tokens_per_minute = 60, .models = {}});
  {
    auto place = account_->Admit({.prompt_tokens = 50}, now_);
    ASSERT_TRUE(place.ok());
    place->CountAnswer(70, now_);  // 60 too many
  }
  EXPECT_EQ(RetryAfter(Ask()), 62);
  now_ += seconds(60);
  EXPECT_FALSE(Ask().ok());
  now_ += seconds(2);
  EXPECT_TRUE(Ask({.prompt_tokens = 1}).ok());
  EXPECT_EQ(account_->usage().prompt_tokens, 51u);
  EXPECT_EQ(account_->usage().answer_tokens, 70u);
}

TEST_F(KeyAccountTest, PlacesAreTakenUntilAnswersEnd) {
  Limit({.max_concurrent = 3, .models = {}});
  auto two = account_->Admit({.samples = 2}, now_);
  ASSERT_TRUE(two.ok());
  const absl::Status refused = Ask({.samples = 2});
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_TRUE(RetryAfter(refused).has_value());
  EXPECT_TRUE(Ask({.samples = 1}).ok());
  *two = {};
  EXPECT_TRUE(Ask({.samples = 3}).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(Ask({.samples = 4}))) << "no waiting would help";
}

TEST_F(KeyAccountTest, WhatAKeyMayNeverDoIsDenied) {
  Limit({.max_priority = 0, .max_prompt_tokens = 10, .max_answer_tokens = 5, .models = {"demo", "small"}});
  EXPECT_TRUE(Ask({.prompt_tokens = 10, .answer_tokens = 5, .priority = 0}).ok());
  for (const auto& [request, says] :
       {std::pair{KeyAccount::Request{.priority = 1}, "priority: 1; requests with the key alice may have at most 0"},
        std::pair{KeyAccount::Request{.prompt_tokens = 11}, "prompt tokens: 11"},
        std::pair{KeyAccount::Request{.answer_tokens = 6}, "max_tokens: 6"}}) {
    const absl::Status refused = Ask(request);
    EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(says));
  }
  EXPECT_TRUE(account_->CheckModel("small").ok());
  EXPECT_TRUE(absl::IsPermissionDenied(account_->CheckModel("large")));
}

TEST_F(KeyAccountTest, WhatIsRefusedTakesNothingOfTheRates) {
  Limit({.requests_per_minute = 1, .max_prompt_tokens = 10, .models = {}});
  EXPECT_FALSE(Ask({.prompt_tokens = 11}).ok());
  EXPECT_TRUE(Ask().ok());
}

TEST_F(KeyAccountTest, OtherLimitsKeepWhatWasUsed) {
  Limit({.requests_per_minute = 2, .models = {}});
  EXPECT_TRUE(Ask().ok());
  EXPECT_TRUE(Ask().ok());
  ApiKey key = account_->key();
  key.limits.requests_per_minute = 3;
  account_->Update(key, now_);
  EXPECT_TRUE(Ask().ok());
  EXPECT_FALSE(Ask().ok());
}

}  // namespace
}  // namespace winnow
