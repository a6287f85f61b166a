#include "tools/load/svg_plot.h"

#include <gmock/gmock.h>

#include <regex>

namespace winnow {
namespace {

struct Circle {
  double x, y;
  std::string colour;
};

// Dots of points (r = 3), in order.
std::vector<Circle> Dots(const std::string& svg) {
  const std::regex dot("<circle cx=\"([0-9.]+)\" cy=\"([0-9.]+)\" r=\"3\" fill=\"(#[0-9a-f]+)\"/>");
  std::vector<Circle> dots;
  for (std::sregex_iterator it(svg.begin(), svg.end(), dot), end; it != end; ++it) {
    dots.push_back({std::stod((*it)[1]), std::stod((*it)[2]), (*it)[3]});
  }
  return dots;
}

TEST(SvgPlotTest, PlacesPointsByTheirValues) {
  const std::string svg =
      SvgPlot({.title = "t", .x_label = "x", .y_label = "y"}, {{"p", {{"a", {{0, 0}, {50, 0.5}, {100, 1}}}}}});
  const std::vector<Circle> dots = Dots(svg);
  ASSERT_EQ(dots.size(), 3u);
  EXPECT_NEAR(dots[1].x - dots[0].x, dots[2].x - dots[1].x, 0.11);  // printed with one decimal
  EXPECT_GT(dots[1].x, dots[0].x);
  EXPECT_NEAR(dots[0].y - dots[1].y, dots[1].y - dots[2].y, 0.11);
  EXPECT_GT(dots[0].y, dots[1].y);  // y grows downwards in SVG
}

TEST(SvgPlotTest, ALogarithmicAxisHasEqualStepsForEqualRatios) {
  const std::string svg = SvgPlot({.title = "t", .x_label = "x", .y_label = "y", .log_x = true},
                                  {{"p", {{"a", {{128, 0}, {512, 0}, {2048, 0}}}}}});
  const std::vector<Circle> dots = Dots(svg);
  ASSERT_EQ(dots.size(), 3u);
  EXPECT_NEAR(dots[1].x - dots[0].x, dots[2].x - dots[1].x, 0.11);
}

TEST(SvgPlotTest, ASeriesHasOneColourInAllPanelsAndOneLegend) {
  const std::string svg = SvgPlot({.title = "t", .x_label = "x", .y_label = "y"},
                                  {{"p", {{"a", {{1, 0}}}, {"b", {{1, 0}}}}}, {"q", {{"b", {{2, 0}}}}}});
  const std::vector<Circle> dots = Dots(svg);
  ASSERT_EQ(dots.size(), 3u);
  EXPECT_NE(dots[0].colour, dots[1].colour);
  EXPECT_EQ(dots[1].colour, dots[2].colour);
  const std::regex legend(">b</text>");
  EXPECT_EQ(std::distance(std::sregex_iterator(svg.begin(), svg.end(), legend), std::sregex_iterator()), 1);
}

TEST(SvgPlotTest, NamesCannotBreakTheDocument) {
  const std::string svg = SvgPlot({.title = "a<b", .x_label = "x", .y_label = "y"}, {{"p & q", {{"<s>", {{1, 0}}}}}});
  EXPECT_THAT(svg, testing::HasSubstr("a&lt;b"));
  EXPECT_THAT(svg, testing::HasSubstr("p &amp; q"));
  EXPECT_THAT(svg, testing::HasSubstr("&lt;s&gt;"));
}

TEST(SvgPlotTest, PointsOnOneSpotAndNoPointsAtAllAreDrawnToo) {
  EXPECT_EQ(Dots(SvgPlot({}, {{"p", {{"a", {{0, 1}, {0, 1}}}}}})).size(), 2u);
  EXPECT_THAT(SvgPlot({}, {}), testing::EndsWith("</svg>\n"));
}

}  // namespace
}  // namespace winnow
