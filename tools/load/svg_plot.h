#pragma once
#include <string>
#include <vector>

namespace winnow {

struct PlotPoint {
  double x = 0;
  double y = 0;
};

// Points of one name, in one colour, in every panel where it occurs; a line joins them in their order.
struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;
};

// One pair of axes. y goes from 0 to 1.
struct PlotPanel {
  std::string title;
  std::vector<PlotSeries> series;
};

struct PlotOptions {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_x = false;  // points at or below 0 stand at the left edge
  int columns = 3;     // panels side by side
};

// Small multiples with a common x axis, as a self-contained SVG document.
std::string SvgPlot(const PlotOptions& options, const std::vector<PlotPanel>& panels);

}  // namespace winnow
