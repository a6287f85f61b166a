#include "tools/bench/gpu/report.h"

#include <cstdio>

namespace winnow {

void GpuReport::Check(const std::string& what, double error, double tolerance) {
  const bool good = error <= tolerance;  // false for NaN
  ++checks_;
  json_["checks"].push_back({{"what", what}, {"error", error}, {"tolerance", tolerance}, {"ok", good}});
  if (good) return;
  ++failures_;
  failed_.push_back(what);
  std::printf("WRONG %s: error %.3g, tolerance %.3g\n", what.c_str(), error, tolerance);
  std::fflush(stdout);
}

void GpuReport::Fail(const std::string& what, const std::string& why) {
  ++checks_;
  ++failures_;
  failed_.push_back(what);
  json_["checks"].push_back({{"what", what}, {"why", why}, {"ok", false}});
  std::printf("FAILED %s: %s\n", what.c_str(), why.c_str());
  std::fflush(stdout);
}

void GpuReport::Time(const std::string& what, double us, double floor_us, double goal_us) {
  times_.push_back({what, us, floor_us, goal_us});
  json_["times"].push_back({{"what", what}, {"us", us}, {"floor_us", floor_us}, {"goal_us", goal_us}});
}

void GpuReport::Note(const std::string& what, const std::string& text) {
  json_["notes"][what] = text;
  std::printf("%s: %s\n", what.c_str(), text.c_str());
  std::fflush(stdout);
}

void GpuReport::PrintTable() const {
  if (!times_.empty()) std::printf("%-58s %10s %10s %6s %9s\n", "", "us", "floor us", "frac", "goal us");
  for (const TimeRow& row : times_) {
    std::printf("%-58s %10.2f %10.2f %6.2f", row.what.c_str(), row.us, row.floor_us, row.floor_us / row.us);
    if (row.goal_us > 0) std::printf(" %9.1f %s", row.goal_us, row.us <= row.goal_us ? "met" : "MISSED");
    std::printf("\n");
  }
  std::printf("%d checks, %d wrong\n", checks_, failures_);
  for (const std::string& what : failed_) std::printf("  wrong: %s\n", what.c_str());
}

nlohmann::json GpuReport::ToJson() const {
  return json_;
}

}  // namespace winnow
