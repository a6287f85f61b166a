#pragma once
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace winnow {

// What a process's /metrics said at one moment: the text exposition format, read.
class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // Lines that are none of the format are left out.
  explicit MetricsText(std::string_view text);

  // Sum of the samples of that name that carry all of `labels`; NaN when there is none, so that it equals nothing.
  double Value(std::string_view name, const Labels& labels = {}) const;
  // The same, apart by the value of `label`; without samples that lack it.
  std::map<std::string, double> ByLabel(std::string_view name, const std::string& label) const;
  // Of a histogram: cumulative counts by upper bound, of all its series together.
  std::map<double, double> Buckets(std::string_view name) const;

 private:
  struct Sample {
    std::string name;
    std::map<std::string, std::string> labels;
    double value = 0;
  };
  std::vector<Sample> samples_;
};

// The `quantile` (0 to 1) of what a histogram observed between two moments, interpolated within its bucket as
// Prometheus does; NaN when it observed nothing. Beyond the last finite bound it is that bound.
double QuantileBetween(const std::map<double, double>& before, const std::map<double, double>& after, double quantile);

}  // namespace winnow
