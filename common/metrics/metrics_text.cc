#include "common/metrics/metrics_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace winnow {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Reads `key="value",...}` from the front of `text`, the brace included; false when it is malformed.
bool ReadLabels(std::string_view& text, std::map<std::string, std::string>& labels) {
  while (!text.empty() && text.front() != '}') {
    const size_t equals = text.find("=\"");
    if (equals == std::string_view::npos) return false;
    std::string& value = labels[std::string(text.substr(0, equals))];
    text.remove_prefix(equals + 2);
    while (!text.empty() && text.front() != '"') {
      if (text.front() == '\\' && text.size() > 1) text.remove_prefix(1);
      value += text.front();
      text.remove_prefix(1);
    }
    if (text.empty()) return false;
    text.remove_prefix(1);
    if (!text.empty() && text.front() == ',') text.remove_prefix(1);
  }
  if (text.empty()) return false;
  text.remove_prefix(1);
  return true;
}

std::optional<double> ReadNumber(std::string_view text) {
  if (text == "+Inf") return std::numeric_limits<double>::infinity();
  double value = 0;
  if (!absl::SimpleAtod(AbslSv(text), &value)) return std::nullopt;
  return value;
}

}  // namespace

MetricsText::MetricsText(std::string_view text) {
  for (const absl::string_view each : absl::StrSplit(AbslSv(text), '\n', absl::SkipEmpty())) {
    std::string_view line(each.data(), each.size());
    const size_t name_end = line.find_first_of("{ ");
    if (line.front() == '#' || name_end == std::string_view::npos) continue;
    Sample sample{.name = std::string(line.substr(0, name_end)), .labels = {}};
    const bool has_labels = line[name_end] == '{';
    line.remove_prefix(name_end + (has_labels ? 1 : 0));
    if (has_labels && !ReadLabels(line, sample.labels)) continue;
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    const std::optional<double> value = ReadNumber(line.substr(0, line.find(' ')));
    if (!value) continue;
    sample.value = *value;
    samples_.push_back(std::move(sample));
  }
}

double MetricsText::Value(std::string_view name, const Labels& labels) const {
  double sum = kNone;
  for (const Sample& sample : samples_) {
    if (sample.name != name) continue;
    const bool matches = std::all_of(labels.begin(), labels.end(), [&](const auto& label) {
      const auto found = sample.labels.find(label.first);
      return found != sample.labels.end() && found->second == label.second;
    });
    if (matches) sum = (std::isnan(sum) ? 0 : sum) + sample.value;
  }
  return sum;
}

std::map<std::string, double> MetricsText::ByLabel(std::string_view name, const std::string& label) const {
  std::map<std::string, double> sums;
  for (const Sample& sample : samples_) {
    const auto found = sample.labels.find(label);
    if (sample.name == name && found != sample.labels.end()) sums[found->second] += sample.value;
  }
  return sums;
}

std::map<double, double> MetricsText::Buckets(std::string_view name) const {
  std::map<double, double> buckets;
  const std::string series = std::string(name) + "_bucket";
  for (const Sample& sample : samples_) {
    const auto bound = sample.labels.find("le");
    if (sample.name != series || bound == sample.labels.end()) continue;
    if (const std::optional<double> at = ReadNumber(bound->second)) buckets[*at] += sample.value;
  }
  return buckets;
}

double QuantileBetween(const std::map<double, double>& before, const std::map<double, double>& after, double quantile) {
  const auto count = [&](const std::pair<const double, double>& bucket) {
    const auto earlier = before.find(bucket.first);
    return bucket.second - (earlier == before.end() ? 0 : earlier->second);
  };
  if (after.empty()) return kNone;
  const double rank = quantile * count(*after.rbegin());
  if (!(count(*after.rbegin()) > 0)) return kNone;
  double below = 0, low = 0;
  for (const auto& bucket : after) {
    const double up_to = count(bucket);
    if (up_to >= rank && up_to > below) {
      if (std::isinf(bucket.first)) return low;
      return low + (bucket.first - low) * (rank - below) / (up_to - below);
    }
    below = up_to;
    low = bucket.first;
  }
  return low;
}

}  // namespace winnow
