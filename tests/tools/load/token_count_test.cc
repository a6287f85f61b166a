#include "tools/load/token_count.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

TEST(ParseTokenCount, KnowsThousandsAndMillionsOf1024) {
  EXPECT_EQ(*ParseTokenCount("100"), 100u);
  EXPECT_EQ(*ParseTokenCount("32k"), 32768u);
  EXPECT_EQ(*ParseTokenCount("1m"), 1048576u);
  EXPECT_EQ(*ParseTokenCount("16m"), 1u << 24);
}

TEST(ParseTokenCount, RefusesWhatIsNone) {
  for (const char* text : {"", "k", "0", "0k", "-1", "32K", "1.5k", " 1", "1kk", "17m", "9999999999999999999"}) {
    EXPECT_FALSE(ParseTokenCount(text).ok()) << text;
  }
}

}  // namespace
}  // namespace winnow
