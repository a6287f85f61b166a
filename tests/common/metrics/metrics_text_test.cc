#include "common/metrics/metrics_text.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(MetricsText, SumsTheSeriesThatCarryTheLabels) {
  const MetricsText text(
      "# HELP x Xs, or x{a=\"b\"} 9\n# TYPE x counter\n"
      "x{role=\"r\",kind=\"a\"} 1\nx{role=\"r\",kind=\"b\"} 2.5\nxy 7\nbroken\nx{kind=\"a} 4\nx{kind=\"c\"} many\n"
      "quoted{path=\"a\\\"b\\\\c,d}\"} 3 1700000000\n");
  EXPECT_EQ(text.Value("x"), 3.5);
  EXPECT_EQ(text.Value("x", {{"kind", "b"}}), 2.5);
  EXPECT_EQ(text.Value("x", {{"kind", "b"}, {"role", "r"}}), 2.5);
  EXPECT_EQ(text.Value("xy"), 7);
  EXPECT_EQ(text.Value("quoted", {{"path", "a\"b\\c,d}"}}), 3);
  EXPECT_TRUE(std::isnan(text.Value("x", {{"kind", "c"}})));
  EXPECT_TRUE(std::isnan(text.Value("y")));
}

TEST(MetricsText, TellsTheSeriesApartByALabel) {
  const MetricsText text(
      "x{reason=\"a\",rank=\"0\"} 1\nx{reason=\"b\"} 2.5\nx{reason=\"a\",rank=\"1\"} 4\nx 9\n"
      "y{reason=\"c\"} 3\n");
  EXPECT_THAT(text.ByLabel("x", "reason"), ElementsAre(Pair("a", 5), Pair("b", 2.5)));
  EXPECT_THAT(text.ByLabel("z", "reason"), ElementsAre());
}

TEST(MetricsText, AddsUpTheBucketsOfAllSeries) {
  const MetricsText text(
      "h_bucket{layer=\"0\",le=\"0.5\"} 1\nh_bucket{layer=\"0\",le=\"+Inf\"} 2\n"
      "h_bucket{layer=\"1\",le=\"0.5\"} 10\nh_bucket{layer=\"1\",le=\"+Inf\"} 10\nh_count 12\n");
  EXPECT_THAT(text.Buckets("h"), ElementsAre(Pair(0.5, 11), Pair(INFINITY, 12)));
}

TEST(MetricsText, QuantilesAreOfWhatCameBetween) {
  const std::map<double, double> before = {{1, 100}, {2, 100}, {4, 100}, {INFINITY, 100}};
  // Four between 1 and 2, and four between 2 and 4.
  const std::map<double, double> after = {{1, 100}, {2, 104}, {4, 108}, {INFINITY, 108}};
  EXPECT_EQ(QuantileBetween(before, after, 0.25), 1.5);
  EXPECT_EQ(QuantileBetween(before, after, 0.5), 2);
  EXPECT_EQ(QuantileBetween(before, after, 0.75), 3);
  EXPECT_TRUE(std::isnan(QuantileBetween(after, after, 0.5)));
  EXPECT_TRUE(std::isnan(QuantileBetween({}, {}, 0.5)));
  const std::map<double, double> beyond = {{1, 100}, {2, 100}, {4, 100}, {INFINITY, 101}};
  EXPECT_EQ(QuantileBetween(before, beyond, 0.5), 4);
}

}  // namespace
}  // namespace winnow
