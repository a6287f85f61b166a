#include "inference_rank/engine/failure_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace winnow {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class FailureRunTest : public testing::Test {
 protected:
  // Attempts fail, with pauses between them.
  void Fail(uint32_t times, milliseconds pause) {
    for (uint32_t i = 0; i < times; ++i) {
      now_ += pause;
      run_.Failed(absl::UnavailableError("no link opens"), now_);
    }
  }

  FailureRun run_;
  FailureRun::Time now_{};
};

TEST_F(FailureRunTest, WhereEveryAttemptFailsForLongTheRankIsOfNoUse) {
  Fail(FailureRun::kFailures - 1, FailureRun::kLeastTime);
  EXPECT_TRUE(run_.At(now_).ok());
  Fail(1, FailureRun::kLeastTime);
  EXPECT_EQ(run_.At(now_).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(run_.At(now_).message()), HasSubstr("no link opens"));
}

TEST_F(FailureRunTest, ManyFailuresOfAMomentAreNotLong) {
  Fail(30, milliseconds(1));
  EXPECT_TRUE(run_.At(now_).ok());
  Fail(3, FailureRun::kLeastTime);
  EXPECT_TRUE(run_.At(now_).ok()) << "those within one moment have one cause";
}

TEST_F(FailureRunTest, ATokenMakesUpForAllFailures) {
  Fail(FailureRun::kFailures, FailureRun::kLeastTime);
  run_.Succeeded();
  EXPECT_TRUE(run_.At(now_).ok());
  Fail(FailureRun::kFailures - 1, FailureRun::kLeastTime);
  EXPECT_TRUE(run_.At(now_).ok());
}

TEST_F(FailureRunTest, AnOldFailureIsForgotten) {
  Fail(FailureRun::kFailures, FailureRun::kLeastTime);
  now_ += FailureRun::kForgotten + milliseconds(1);
  EXPECT_TRUE(run_.At(now_).ok());
  Fail(1, milliseconds(1));
  EXPECT_TRUE(run_.At(now_).ok()) << "it begins anew";
}

}  // namespace
}  // namespace winnow
