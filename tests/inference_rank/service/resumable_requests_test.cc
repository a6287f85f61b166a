#include "inference_rank/service/resumable_requests.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

struct Stream final : EventSink {
  void Send(v1::DispatchResponse event) override { events.push_back(std::move(event)); }

  // Of the request, as a router puts them together.
  std::vector<uint32_t> Ids(uint64_t request_id) const {
    std::vector<uint32_t> ids;
    for (const v1::DispatchResponse& event : events) {
      if (event.request_id() != request_id || !event.has_tokens()) continue;
      EXPECT_EQ(event.tokens().first_index(), ids.size());
      for (const v1::Token& token : event.tokens().tokens()) ids.push_back(token.id());
    }
    return ids;
  }

  std::vector<v1::DispatchResponse> events;
};

v1::DispatchResponse Tokens(uint32_t first_index, const std::vector<uint32_t>& ids) {
  v1::DispatchResponse event;
  event.mutable_tokens()->set_first_index(first_index);
  for (const uint32_t id : ids) event.mutable_tokens()->add_tokens()->set_id(id);
  return event;
}

v1::DispatchResponse Finished() {
  v1::DispatchResponse event;
  event.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
  return event;
}

class ResumableRequestsTest : public testing::Test {
 protected:
  static v1::DispatchRequest::Submit Submit(uint64_t request_id, const std::string& key) {
    v1::DispatchRequest::Submit submit;
    submit.set_request_id(request_id);
    submit.set_sequence_id(100 + request_id);
    submit.add_cache_ranks()->set_rank("cache-0");
    submit.set_tenant("tenant");
    submit.set_resume_key(key);
    return submit;
  }
  static v1::DispatchRequest::Resume Resume(uint64_t request_id, const std::string& key,
                                            const std::string& tenant = "tenant") {
    v1::DispatchRequest::Resume resume;
    resume.set_request_id(request_id);
    resume.set_resume_key(key);
    resume.set_tenant(tenant);
    return resume;
  }
  static v1::DispatchRequest::Leave Leave(uint64_t request_id, bool stop = false) {
    v1::DispatchRequest::Leave leave;
    leave.set_request_id(request_id);
    leave.set_stop(stop);
    return leave;
  }
  void Make(const ResumeLimits& limits) {
    requests_ = std::make_unique<ResumableRequests>(
        limits,
        [this](const std::shared_ptr<EventSink>&, uint64_t request_id) {
          std::lock_guard lock(mutex_);
          cancelled_.push_back(request_id);
        },
        metrics_);
  }
  std::shared_ptr<EventSink> Begin(uint64_t request_id, const std::string& key) {
    auto sink = requests_->Begin(Submit(request_id, key), first_);
    EXPECT_TRUE(sink.ok()) << sink.status();
    return *sink;
  }
  std::vector<uint64_t> cancelled() {
    std::lock_guard lock(mutex_);
    return cancelled_;
  }

  const std::shared_ptr<Stream> first_ = std::make_shared<Stream>(), second_ = std::make_shared<Stream>();
  InferenceRankMetrics metrics_{1};
  std::mutex mutex_;
  std::vector<uint64_t> cancelled_;  // guarded by mutex_
  std::unique_ptr<ResumableRequests> requests_;
};

constexpr ResumeLimits kLong{.grace = std::chrono::hours(1)};

TEST_F(ResumableRequestsTest, AnotherStreamGetsAllTokensAndThenTheNewOnes) {
  Make(kLong);
  const auto sink = Begin(1, "key");
  sink->Send(Tokens(0, {10, 11}));
  requests_->StreamEnded(first_.get());
  EXPECT_EQ(metrics_.held_requests, 1u);
  sink->Send(Tokens(2, {12}));
  EXPECT_EQ(first_->Ids(1), (std::vector<uint32_t>{10, 11}));

  ASSERT_TRUE(requests_->Resume(Resume(7, "key"), second_).ok());
  ASSERT_TRUE(second_->events.front().has_resumed());
  EXPECT_EQ(second_->events.front().resumed().sequence_id(), 101u);
  EXPECT_EQ(second_->events.front().resumed().cache_ranks(0).rank(), "cache-0");
  sink->Send(Tokens(3, {13}));
  sink->Send(Finished());
  EXPECT_EQ(second_->Ids(7), (std::vector<uint32_t>{10, 11, 12, 13}));
  EXPECT_TRUE(second_->events.back().has_finished());
  EXPECT_EQ(second_->events.back().request_id(), 7u);
  EXPECT_EQ(metrics_.resumed_requests, 1u);
  EXPECT_TRUE(cancelled().empty());
}

TEST_F(ResumableRequestsTest, AnEndThatNobodyHeardIsToldToWhoeverResumes) {
  Make(kLong);
  const auto sink = Begin(1, "key");
  requests_->Leave(first_.get(), Leave(1));
  sink->Send(Tokens(0, {10}));
  sink->Send(Finished());
  for (const uint64_t id : {7, 8}) {
    ASSERT_TRUE(requests_->Resume(Resume(id, "key"), second_).ok());
    EXPECT_EQ(second_->Ids(id), (std::vector<uint32_t>{10}));
    EXPECT_TRUE(second_->events.back().has_finished());
  }
}

TEST_F(ResumableRequestsTest, TokensThatAnEarlierAttemptGeneratedAreToldToo) {
  Make(kLong);
  v1::DispatchRequest::Submit submit = Submit(1, "key");
  submit.add_generated_token_ids(10);
  submit.add_generated_token_ids(11);
  const auto sink = *requests_->Begin(submit, first_);
  sink->Send(Tokens(1, {11, 12}));
  ASSERT_TRUE(requests_->Resume(Resume(7, "key"), second_).ok());
  EXPECT_EQ(second_->Ids(7), (std::vector<uint32_t>{10, 11, 12}));
}

TEST_F(ResumableRequestsTest, WhoeverListenedIsToldThatAnotherDoes) {
  Make(kLong);
  const auto sink = Begin(1, "key");
  ASSERT_TRUE(requests_->Resume(Resume(7, "key"), second_).ok());
  ASSERT_TRUE(first_->events.back().has_failed());
  EXPECT_EQ(first_->events.back().request_id(), 1u);
  EXPECT_EQ(first_->events.back().failed().code(), static_cast<uint32_t>(absl::StatusCode::kAborted));
  EXPECT_FALSE(first_->events.back().failed().retryable());
  // Its words have no weight any more.
  EXPECT_FALSE(requests_->Free(first_.get(), 1));
  EXPECT_EQ(requests_->Begin(Submit(2, "key"), first_).status().code(), absl::StatusCode::kAborted);
  requests_->StreamEnded(first_.get());
  EXPECT_EQ(metrics_.held_requests, 0u);
}

TEST_F(ResumableRequestsTest, IsForItsTenantAndItsKey) {
  Make(kLong);
  const auto sink = Begin(1, "key");
  EXPECT_EQ(requests_->Resume(Resume(7, "key", "other"), second_).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(requests_->Resume(Resume(7, "other"), second_).code(), absl::StatusCode::kNotFound);
  requests_->FreeKey("key", "other");
  EXPECT_TRUE(cancelled().empty());
  EXPECT_TRUE(second_->events.empty());
}

TEST_F(ResumableRequestsTest, FreesWhatNobodyResumesWithinTheGrace) {
  Make({.grace = std::chrono::milliseconds(0)});
  const auto sink = Begin(1, "key");
  const auto other = Begin(2, "other");
  EXPECT_TRUE(requests_->Leave(first_.get(), Leave(1)));
  EXPECT_EQ(cancelled(), std::vector<uint64_t>{1});
  EXPECT_EQ(metrics_.expired_requests, 1u);
  EXPECT_EQ(requests_->Resume(Resume(7, "key"), second_).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(requests_->Resume(Resume(8, "other"), second_).ok()) << "somebody listens to it";
}

TEST_F(ResumableRequestsTest, HoldsNoMoreThanItMayAndLetsGoOfTheOldestFirst) {
  ResumeLimits limits = kLong;
  limits.max_held = 2;
  Make(limits);
  for (const uint64_t id : {1, 2, 3}) {
    Begin(id, absl::StrCat("key", 9 - id));
    requests_->Leave(first_.get(), Leave(id));
  }
  EXPECT_EQ(cancelled(), std::vector<uint64_t>{1});
  EXPECT_EQ(metrics_.held_requests, 2u);

  limits = kLong;
  limits.max_held_bytes = 1000;
  Make(limits);
  const auto long_one = Begin(4, "a");
  const auto short_one = Begin(5, "b");
  long_one->Send(Tokens(0, std::vector<uint32_t>(1000, 1)));
  requests_->StreamEnded(first_.get());
  EXPECT_EQ(requests_->Resume(Resume(7, "a"), second_).code(), absl::StatusCode::kNotFound);
}

TEST_F(ResumableRequestsTest, AnAbortFreesAtOnce) {
  Make(kLong);
  Begin(1, "key");
  const auto sink = Begin(2, "other");
  EXPECT_TRUE(requests_->Free(first_.get(), 1));
  EXPECT_EQ(cancelled(), std::vector<uint64_t>{1});
  requests_->FreeKey("other", "tenant");
  EXPECT_EQ(cancelled(), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(first_->events.back().failed().code(), static_cast<uint32_t>(absl::StatusCode::kCancelled));
}

// A stop string has ended the answer: the text is found again in the tokens.
TEST_F(ResumableRequestsTest, KeepsTheTokensOfWhatIsNotToBeComputedOn) {
  Make(kLong);
  const auto sink = Begin(1, "key");
  sink->Send(Tokens(0, {10, 11}));
  EXPECT_TRUE(requests_->Leave(first_.get(), Leave(1, /*stop=*/true)));
  EXPECT_EQ(cancelled(), std::vector<uint64_t>{1});
  ASSERT_TRUE(requests_->Resume(Resume(7, "key"), second_).ok());
  EXPECT_EQ(second_->Ids(7), (std::vector<uint32_t>{10, 11}));
  EXPECT_TRUE(second_->events.back().failed().retryable());
}

TEST_F(ResumableRequestsTest, ALaterAttemptTakesThePlaceOfOneThatIsOver) {
  Make(kLong);
  Begin(1, "key");
  EXPECT_EQ(requests_->Begin(Submit(2, "key"), first_).status().code(), absl::StatusCode::kAborted);
  requests_->Leave(first_.get(), Leave(1));
  const auto again = Begin(2, "key");
  EXPECT_EQ(cancelled(), std::vector<uint64_t>{1});
  v1::DispatchResponse handed_over;
  handed_over.mutable_handed_over();
  again->Send(handed_over);
  v1::DispatchRequest::Submit attach = Submit(3, "key");
  attach.set_attach(true);
  const auto attached = *requests_->Begin(attach, first_);
  EXPECT_EQ(cancelled(), std::vector<uint64_t>{1}) << "it takes the sequence over";
  attached->Send(Tokens(0, {10}));
  ASSERT_TRUE(requests_->Resume(Resume(7, "key"), second_).ok());
  EXPECT_EQ(second_->Ids(7), std::vector<uint32_t>{10});
}

}  // namespace
}  // namespace winnow
