#include "cmd/terminal/progress_line.h"

#include "gtest/gtest.h"

namespace winnow {
namespace {

TEST(ProgressBar, FillsWithTheShare) {
  EXPECT_EQ(ProgressBar(0, 10, ""), "[........................]   0 %");
  EXPECT_EQ(ProgressBar(5, 10, "requests"), "[############............]  50 %  5 of 10 requests");
  EXPECT_EQ(ProgressBar(10, 10, ""), "[########################] 100 %");
  EXPECT_EQ(ProgressBar(11, 10, ""), "[########################] 100 %");
  EXPECT_EQ(ProgressBar(0, 0, ""), "[........................]   0 %");
}

TEST(ElapsedText, IsShort) {
  EXPECT_EQ(ElapsedText(std::chrono::seconds(7)), "7 s");
  EXPECT_EQ(ElapsedText(std::chrono::seconds(65)), "1:05");
}

TEST(ProgressLine, ShowsNothingWhereStderrIsNoTerminal) {
  testing::internal::CaptureStderr();
  {
    ProgressLine line;
    EXPECT_FALSE(line.shows());
    line.Show("half");
    line.WriteAbove("a line\n");
    const TickingLine ticking(line, [](std::chrono::duration<double>) { return "never"; });
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "a line\n");
}

}  // namespace
}  // namespace winnow
