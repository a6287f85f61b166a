#include "tools/load/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace winnow {
namespace {

constexpr double kWidth = 300, kHeight = 210;  // of a panel, margins included
constexpr double kLeft = 42, kRight = 12, kTop = 26, kBottom = 38, kHead = 34, kLegendLine = 16;
// Colours that stay apart for colour-blind readers (Okabe and Ito), and two more.
constexpr std::array<std::string_view, 10> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
                                                       "#56b4e9", "#000000", "#b8a800", "#7a4fbf", "#8c564b"};

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// The x axis that all panels share.
class Axis {
 public:
  Axis(const PlotOptions& options, const std::vector<PlotPanel>& panels) : log_(options.log_x) {
    bool any = false;
    for (const PlotPanel& panel : panels) {
      for (const PlotSeries& series : panel.series) {
        for (const PlotPoint& point : series.points) {
          if (log_ && point.x <= 0) continue;
          const double x = Scale(point.x);
          low_ = any ? std::min(low_, x) : x;
          high_ = any ? std::max(high_, x) : x;
          any = true;
        }
      }
    }
    if (!log_) low_ = std::min(low_, 0.0);
    if (high_ - low_ < 1e-9) high_ = low_ + 1;
  }

  // In [0, 1].
  double Place(double x) const {
    if (log_ && x <= 0) return 0;
    return (Scale(x) - low_) / (high_ - low_);
  }
  // Powers of two (log) or fifths of the range.
  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    if (log_) {
      const int step = std::max(1, static_cast<int>(std::ceil((high_ - low_) / 6)));
      for (int e = static_cast<int>(std::ceil(low_ - 1e-9)); e <= high_ + 1e-9; e += step)
        ticks.push_back(std::exp2(e));
      return ticks;
    }
    const double raw = (high_ - low_) / 5, unit = std::pow(10, std::floor(std::log10(raw)));
    const double step = raw / unit < 2 ? 2 * unit : raw / unit < 5 ? 5 * unit : 10 * unit;
    for (double x = std::ceil(low_ / step) * step; x <= high_ + 1e-9 * step; x += step) ticks.push_back(x);
    return ticks;
  }

 private:
  double Scale(double x) const { return log_ ? std::log2(x) : x; }
  const bool log_;
  double low_ = 0, high_ = 0;
};

std::string TickLabel(double x) {
  if (x >= 1048576) return absl::StrFormat("%gM", x / 1048576);
  if (x >= 16384) return absl::StrFormat("%gk", x / 1024);
  return absl::StrFormat("%g", x);
}

void AppendText(std::string* svg, double x, double y, std::string_view anchor, int size, const std::string& text) {
  absl::StrAppendFormat(svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\">%s</text>\n", x, y,
                        std::string(anchor), size, Escape(text));
}

void AppendPanel(std::string* svg, const PlotOptions& options, const PlotPanel& panel, const Axis& axis,
                 const std::vector<std::string>& names, double x0, double y0) {
  const double width = kWidth - kLeft - kRight, height = kHeight - kTop - kBottom;
  const double left = x0 + kLeft, bottom = y0 + kTop + height;
  AppendText(svg, left + width / 2, y0 + kTop - 8, "middle", 12, panel.title);
  for (int i = 0; i <= 4; ++i) {
    const double y = bottom - height * i / 4;
    absl::StrAppendFormat(svg, "<path d=\"M%.1f %.1fh%.1f\" stroke=\"#ddd\"/>\n", left, y, width);
    AppendText(svg, left - 5, y + 3, "end", 9, absl::StrFormat("%g", i / 4.0));
  }
  for (const double tick : axis.Ticks()) {
    const double x = left + width * axis.Place(tick);
    absl::StrAppendFormat(svg, "<path d=\"M%.1f %.1fv4\" stroke=\"#888\"/>\n", x, bottom);
    AppendText(svg, x, bottom + 14, "middle", 9, TickLabel(tick));
  }
  AppendText(svg, left + width / 2, bottom + 28, "middle", 10, options.x_label);
  for (const PlotSeries& series : panel.series) {
    const size_t index = std::find(names.begin(), names.end(), series.name) - names.begin();
    const std::string colour(kColours[index % kColours.size()]);
    std::string path, dots;
    for (const PlotPoint& point : series.points) {
      const double x = left + width * axis.Place(point.x), y = bottom - height * std::clamp(point.y, 0.0, 1.0);
      absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L", x, y);
      absl::StrAppendFormat(&dots, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x, y, colour);
    }
    absl::StrAppendFormat(svg, "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\"/>\n%s", path, colour,
                          dots);
  }
}

}  // namespace

std::string SvgPlot(const PlotOptions& options, const std::vector<PlotPanel>& panels) {
  std::vector<std::string> names;
  for (const PlotPanel& panel : panels) {
    for (const PlotSeries& series : panel.series) {
      if (std::find(names.begin(), names.end(), series.name) == names.end()) names.push_back(series.name);
    }
  }
  const int columns = std::max(1, std::min<int>(options.columns, static_cast<int>(panels.size())));
  const int rows = (static_cast<int>(panels.size()) + columns - 1) / columns;
  const double width = columns * kWidth, legend = kHead + rows * kHeight;
  const double height = legend + kLegendLine * (static_cast<double>(names.size()) + 1);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      width, height);
  AppendText(&svg, 8, 18, "start", 14, options.title);
  AppendText(&svg, 8, 31, "start", 10, options.y_label);
  const Axis axis(options, panels);
  for (size_t i = 0; i < panels.size(); ++i) {
    const size_t row = i / columns, column = i % columns;
    AppendPanel(&svg, options, panels[i], axis, names, static_cast<double>(column) * kWidth,
                kHead + static_cast<double>(row) * kHeight);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const double y = legend + kLegendLine * (static_cast<double>(i) + 0.5);
    absl::StrAppendFormat(&svg, "<circle cx=\"16\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", y - 3,
                          std::string(kColours[i % kColours.size()]));
    AppendText(&svg, 26, y, "start", 11, names[i]);
  }
  return svg + "</svg>\n";
}

}  // namespace winnow
