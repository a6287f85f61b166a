#include "common/config/parse_value.h"

#include "gtest/gtest.h"

namespace winnow {
namespace {

using std::chrono::microseconds;

TEST(ParseValue, BytesTakeBinaryAndDecimalUnits) {
  const std::pair<const char*, int64_t> cases[] = {
      {"0", 0}, {"123", 123}, {"64KiB", 65536}, {"1.5GiB", 1610612736}, {"2GB", 2'000'000'000}, {"512 MiB", 536870912},
      {"7B", 7}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(*ParseBytes(text), bytes) << text;
  for (const char* text : {"", "GiB", "-1", "1.2.3MiB", "5 XB", "99999999TiB"})
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
}

TEST(ParseValue, DurationsNeedAUnit) {
  const std::pair<const char*, int64_t> cases[] = {{"250us", 250}, {"500ms", 500'000},   {"2s", 2'000'000},
                                                   {"0", 0},       {"1.5m", 90'000'000}, {"1h", 3'600'000'000}};
  for (const auto& [text, us] : cases) EXPECT_EQ(*ParseDuration(text), microseconds(us)) << text;
  for (const char* text : {"", "5", "ms", "-2s", "3 days"}) EXPECT_FALSE(ParseDuration(text).ok()) << text;
}

TEST(ParseValue, FormattedTextReadsBackAsTheSameValue) {
  for (int64_t value :
       {int64_t{0}, int64_t{1}, int64_t{1023}, int64_t{1024}, int64_t{3} << 29, (int64_t{1} << 40) + 1}) {
    EXPECT_EQ(*ParseBytes(FormatBytes(value)), value);
    EXPECT_EQ(*ParseDuration(FormatDuration(microseconds(value))), microseconds(value));
  }
  EXPECT_EQ(FormatBytes(int64_t{2} << 30), "2GiB");
  EXPECT_EQ(FormatDuration(microseconds(500'000)), "500ms");
}

TEST(ParseValue, AddressesAreHostAndPort) {
  EXPECT_EQ(*ParseHostPort("127.0.0.1:8000"), (HostPort{"127.0.0.1", 8000}));
  EXPECT_EQ(*ParseHostPort("[::1]:0"), (HostPort{"::1", 0}));
  EXPECT_EQ(ParseHostPort("[::1]:9")->ToString(), "[::1]:9");
  for (const char* text : {"", "localhost", ":80", "h:", "h:65536", "h:-1", "h:8x", "::1:80", "[]:1"}) {
    EXPECT_FALSE(ParseHostPort(text).ok()) << text;
  }
}

TEST(ParseValue, WholeNumbersAreWhole) {
  EXPECT_EQ(*ParseInt("-42"), -42);
  for (const char* text : {"", "1.5", "12x", " 1", "99999999999999999999"}) EXPECT_FALSE(ParseInt(text).ok()) << text;
  EXPECT_FALSE(ParseNumber("nan").ok());
  EXPECT_FALSE(ParseNumber("inf").ok());
  EXPECT_FALSE(ParseBool("maybe").ok());
}

}  // namespace
}  // namespace winnow
