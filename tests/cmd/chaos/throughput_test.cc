// Tokens a second around a fault.
#include "cmd/chaos/modes/throughput.h"

#include <gtest/gtest.h>

namespace winnow::chaos {
namespace {

using std::chrono::seconds;

TEST(Throughput, CountsTheTokensOfAWindowThatIsOpenAtItsEnd) {
  const Clock::time_point begin = Clock::now();
  std::vector<Answer> answers(2);
  answers[0].arrivals = {{begin - seconds(1), 100}, {begin, 3}, {begin + seconds(1), 4}};
  answers[1].arrivals = {{begin + seconds(1), 5}, {begin + seconds(2), 100}};
  const TokenWindow window = TokensBetween(answers, begin, begin + seconds(2));
  EXPECT_EQ(window.tokens, 12);
  EXPECT_EQ(window.per_s(), 6);
}

TEST(Throughput, WindowsThatAreTooShortAreNotReported) {
  Throughput throughput;
  throughput.before = {.tokens = 10, .seconds = 0.4};
  EXPECT_EQ(TextOf(throughput), "tokens/s: no span of time is long enough to tell");
  throughput.during = {.tokens = 10, .seconds = 4};
  throughput.after = {.tokens = 30, .seconds = 2};
  EXPECT_EQ(TextOf(throughput), "tokens/s: 2.5 in it (4.0 s), 15.0 then (2.0 s)");
}

}  // namespace
}  // namespace winnow::chaos
