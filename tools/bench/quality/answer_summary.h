#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/quality/answer_record.h"
#include "tools/bench/quality/paired_statistics.h"

namespace winnow {

// The smallest mass of good quality, as the project's goals have it: a multiple of the records' bins of 1/1000.
inline constexpr double kMassFloor = 0.95;

// What a specification made of all prompts of one task and length, beside dense attention on the same prompts.
struct AnswerSummary {
  std::string mode;
  std::string task;  // or kAllTasks
  int chars = 0;
  std::string spec;
  uint32_t budget = 0;  // 0: unlimited

  int prompts = 0;
  double prompt_tokens = 0;  // mean
  int exact = 0;             // prompts with every answer token right
  Interval exact_interval;   // of the share, 95 %
  double token_share = 0;    // of all answer tokens, right ones
  int paired = 0;            // prompts that dense has answered too
  int lost = 0;              // of those, right with dense and wrong here
  int gained = 0;            // and the other way round
  double sign_test = 1;      // of lost against gained

  bool has_mass = false;
  double mass_mean = 0;
  std::optional<double> mass_p5;  // 5th percentile over steps, layers and kv heads
  double floor_share = 0;         // share of those masses of at least kMassFloor
  double mass_before_mean = 0;    // without the guard's corrections; 0 where there is no guard
  double hit_ratio = 1;           // of selected rows, resident already; 1 where nothing is selected
  // Per decode step, over all layers and kv heads.
  double attended_rows_per_step = 0;  // by attention; corrections apart
  double rows_per_step = 0;           // that travelled
  double bytes_per_step = 0;
  double key_bytes_per_step = 0;
  double corrections_per_step = 0;  // heads corrected by the guard, and rows that this took
  double correction_rows_per_step = 0;

  double exact_share() const { return prompts == 0 ? 0 : static_cast<double>(exact) / prompts; }
};

// The task name of the summary over all tasks of a length, which follows theirs where there are several.
inline constexpr std::string_view kAllTasks = "all";

// One summary per (mode, task, chars, spec, budget), grouped by mode, task and chars, in the order in which each comes
// first.
std::vector<AnswerSummary> Summarize(const std::vector<AnswerRecord>& records);

// RFC 4180 with a header line.
std::string SummaryCsv(const std::vector<AnswerSummary>& summaries);
// For people: a block per task and length.
std::string SummaryTable(const std::vector<AnswerSummary>& summaries);

// "winnow:256", or "dense".
std::string SpecLabel(const std::string& spec, uint32_t budget);

}  // namespace winnow
