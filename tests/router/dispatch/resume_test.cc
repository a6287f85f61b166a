// An answer that was begun before, perhaps by another router.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/router/dispatch/dispatcher_fixture.h"

namespace winnow::test {
namespace {

using ::testing::ElementsAre;

class ResumeTest : public DispatcherTest {
 protected:
  static TokenRequest Resumed(const v1::Identity& inference) {
    TokenRequest request = Request();
    request.resume_key = "key";
    request.resume = TokenResume{.inference = KeyOf(inference), .next_index = 1};
    return request;
  }
};

TEST_F(ResumeTest, GoesOnWithWhatTheRankHas) {
  ScriptedRank rank("inference-0"), other("inference-1");
  StartDispatcher({other.identity(), rank.identity(), CacheRank("cache-0")});
  Recorder recorder;
  const auto stream = Start(Resumed(rank.identity()), &recorder);
  const v1::DispatchRequest::Resume resume = rank.AwaitResume(1);
  EXPECT_EQ(resume.resume_key(), "key");
  rank.SendResumed(resume.request_id(), 77, CacheRank("cache-0"));
  rank.SendTokens(resume.request_id(), 0, {5, 6});
  EXPECT_THAT(recorder.AwaitTokens(2), ElementsAre(5, 6));
  EXPECT_EQ(stream->fork_source()->sequence_id, 77u);
  rank.SendFinished(resume.request_id());
  EXPECT_TRUE(recorder.AwaitEnd().ok());
  EXPECT_EQ(rank.submit_count() + other.submit_count(), 0u);
  EXPECT_EQ(dispatcher_->counters().resumed, 1u);
  EXPECT_EQ(dispatcher_->counters().tokens, 1u) << "the client had the first one";
  ExpectNothingLeft();
}

TEST_F(ResumeTest, AsksOtherRanksWhereTheFirstHasItNoMore) {
  ScriptedRank rank("inference-0"), other("inference-1");
  StartDispatcher({other.identity(), rank.identity(), CacheRank("cache-0")});
  Recorder recorder;
  const auto stream = Start(Resumed(rank.identity()), &recorder);
  rank.SendFailed(rank.AwaitResume(1).request_id(), false, false, 5);
  const uint64_t id = other.AwaitResume(1).request_id();
  other.SendResumed(id, 77, CacheRank("cache-0"));
  other.SendTokens(id, 0, {5});
  EXPECT_THAT(recorder.AwaitTokens(1), ElementsAre(5));
}

TEST_F(ResumeTest, WaitsForTheRankThatHadIt) {
  ScriptedRank rank("inference-0"), other("inference-1");
  DispatcherOptions options;
  options.resume_wait = std::chrono::hours(1);
  StartDispatcher({other.identity(), CacheRank("cache-0")}, options);
  Recorder recorder;
  const auto stream = Start(Resumed(rank.identity()), &recorder);
  other.SendFailed(other.AwaitResume(1).request_id(), false, false, 5);
  Join(rank.identity());
  const uint64_t id = rank.AwaitResume(1).request_id();
  rank.SendResumed(id, 77, CacheRank("cache-0"));
  rank.SendTokens(id, 0, {5});
  EXPECT_THAT(recorder.AwaitTokens(1), ElementsAre(5));
  EXPECT_EQ(other.submit_count(), 0u);
}

TEST_F(ResumeTest, BeginsAnewWhereNoRankHasIt) {
  ScriptedRank rank("inference-0"), gone("inference-1");
  DispatcherOptions options;
  options.resume_wait = std::chrono::milliseconds(1);
  for (const ScriptedRank* had_it : {&rank, &gone}) {
    SCOPED_TRACE(had_it->identity().rank());
    if (dispatcher_ == nullptr) StartDispatcher({rank.identity(), CacheRank("cache-0")}, options);
    Recorder recorder;
    const size_t before = rank.submit_count();
    const auto stream = Start(Resumed(had_it->identity()), &recorder);
    rank.SendFailed(rank.AwaitResume(before + 1).request_id(), false, false, 5);
    const ScriptedRank::Submit submit = rank.AwaitSubmit(before + 1);
    EXPECT_EQ(submit.resume_key(), "key");
    EXPECT_EQ(submit.sampling().seed(), 5u);
    rank.SendTokens(submit.request_id(), 0, {5});
    rank.SendFinished(submit.request_id());
    EXPECT_TRUE(recorder.AwaitEnd().ok());
  }
  EXPECT_EQ(dispatcher_->counters().resumed_recompute, 2u);
}

TEST_F(ResumeTest, FailsOverAsAnyOtherRequestOnceItGoesOn) {
  ScriptedRank rank("inference-0"), other("inference-1");
  StartDispatcher({rank.identity(), other.identity(), CacheRank("cache-0")});
  Recorder recorder;
  const auto stream = Start(Resumed(rank.identity()), &recorder);
  const uint64_t id = rank.AwaitResume(1).request_id();
  rank.SendResumed(id, 77, CacheRank("cache-0"));
  rank.SendTokens(id, 0, {5, 6});
  recorder.AwaitTokens(2);
  rank.Kill();
  const ScriptedRank::Submit submit = other.AwaitSubmit(1);
  EXPECT_TRUE(submit.attach());
  EXPECT_EQ(submit.sequence_id(), 77u);
  EXPECT_THAT(submit.generated_token_ids(), ElementsAre(5, 6));
}

TEST_F(ResumeTest, IsLeftToItsRankWhereTheClientHasGone) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")});
  for (const Leftovers leftovers : {Leftovers::kKeepComputing, Leftovers::kKeepTokens}) {
    Recorder recorder;
    TokenRequest request = Request();
    request.resume_key = "key";
    const size_t before = rank.submit_count();
    auto stream = Start(std::move(request), &recorder);
    const uint64_t id = rank.AwaitSubmit(before + 1).request_id();
    stream->SetLeftovers(leftovers);
    stream = nullptr;
    EXPECT_EQ(rank.AwaitLeave(id).stop(), leftovers == Leftovers::kKeepTokens);
  }
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  const uint64_t id = rank.AwaitSubmit(3).request_id();
  stream->SetLeftovers(Leftovers::kKeepComputing);
  stream = nullptr;
  rank.AwaitCancel(id);  // it is not resumable
}

}  // namespace
}  // namespace winnow::test
