#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "nlohmann/json.hpp"

namespace winnow {

// Collects what the GPU check finds: verdicts against references, and times beside the floor that memory or arithmetic
// sets. Prints as it goes, a short table last.
class GpuReport {
 public:
  // The worst error of `what` was `error`, allowed is `tolerance`. NaN fails.
  void Check(const std::string& what, double error, double tolerance);
  void Fail(const std::string& what, const std::string& why);
  // `us` is a median; floor_us what the bytes or operations take at the rates measured in this run; goal_us 0: no goal.
  void Time(const std::string& what, double us, double floor_us, double goal_us = 0);
  void Note(const std::string& what, const std::string& text);

  int failures() const { return failures_; }
  void PrintTable() const;
  nlohmann::json ToJson() const;

 private:
  struct TimeRow {
    std::string what;
    double us, floor_us, goal_us;
  };
  int checks_ = 0;
  int failures_ = 0;
  std::vector<std::string> failed_;
  std::vector<TimeRow> times_;
  nlohmann::json json_ = nlohmann::json::object();
};

}  // namespace winnow
