#include "tools/bench/quality/answer_summary.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "absl/strings/str_format.h"
#include "tools/bench/quality/csv.h"

namespace winnow {
namespace {

// Numbers each value in the order in which it comes first.
template <class Value>
class FirstSeen {
 public:
  size_t Rank(const Value& value) { return ranks_.try_emplace(value, ranks_.size()).first->second; }

 private:
  std::map<Value, size_t> ranks_;
};

// Lower edge of the bin that holds the given share of all masses from below.
double Percentile(const std::map<int, uint64_t>& bins, double share) {
  uint64_t total = 0, below = 0;
  for (const auto& [bin, count] : bins) total += count;
  for (const auto& [bin, count] : bins) {
    below += count;
    if (static_cast<double>(below) > share * static_cast<double>(total)) return bin / 1000.0;
  }
  return 1;
}

// Share of all masses of at least kMassFloor.
double FloorShare(const std::map<int, uint64_t>& bins) {
  uint64_t total = 0, enough = 0;
  for (const auto& [bin, count] : bins) {
    total += count;
    if (bin >= std::lround(1000 * kMassFloor)) enough += count;
  }
  return total == 0 ? 0 : static_cast<double>(enough) / static_cast<double>(total);
}

double Share(double part, double whole, double otherwise) {
  return whole > 0 ? part / whole : otherwise;
}

using DenseAnswers = std::map<std::pair<std::string, std::string>, bool>;  // by (mode, id): exact

AnswerSummary SummarizeGroup(const std::vector<const AnswerRecord*>& group, const DenseAnswers& dense) {
  AnswerSummary s;
  uint64_t tokens = 0, right = 0, prompt_tokens = 0, mass_count = 0, lookups = 0, hits = 0, attended = 0, rows = 0,
           bytes = 0, key_bytes = 0, steps = 0, corrections = 0, correction_rows = 0;
  double mass = 0, mass_before = 0;
  std::map<int, uint64_t> bins;
  for (const AnswerRecord* r : group) {
    ++s.prompts;
    s.exact += r->exact;
    prompt_tokens += r->prompt_tokens;
    tokens += r->answer_tokens;
    right += r->right_tokens;
    mass_count += r->mass_count;
    mass += r->mass_mean * static_cast<double>(r->mass_count);
    for (const auto& [bin, count] : r->mass_bins) bins[bin] += count;
    mass_before += r->mass_before_mean * static_cast<double>(r->mass_count);
    corrections += r->corrections;
    correction_rows += r->correction_rows;
    lookups += r->selection_lookups;
    hits += r->selection_hits;
    attended += r->attended_rows;
    rows += r->streamed_rows;
    bytes += r->streamed_bytes;
    key_bytes += r->scored_key_bytes;
    steps += r->decode_steps;
    if (const auto found = dense.find({r->mode, r->id}); found != dense.end()) {
      ++s.paired;
      s.lost += found->second && !r->exact;
      s.gained += !found->second && r->exact;
    }
  }
  s.prompt_tokens = static_cast<double>(prompt_tokens) / s.prompts;
  s.exact_interval = WilsonInterval(s.exact, s.prompts);
  s.token_share = Share(right, tokens, 0);
  s.sign_test = SignTest(s.lost, s.gained);
  s.has_mass = mass_count > 0;
  s.mass_mean = Share(mass, mass_count, 0);
  if (!bins.empty()) s.mass_p5 = Percentile(bins, 0.05);
  s.floor_share = FloorShare(bins);
  s.mass_before_mean = Share(mass_before, mass_count, 0);
  s.corrections_per_step = Share(corrections, steps, 0);
  s.correction_rows_per_step = Share(correction_rows, steps, 0);
  s.hit_ratio = Share(hits, lookups, 1);
  s.attended_rows_per_step = Share(attended, steps, 0);
  s.rows_per_step = Share(rows, steps, 0);
  s.bytes_per_step = Share(bytes, steps, 0);
  s.key_bytes_per_step = Share(key_bytes, steps, 0);
  return s;
}

}  // namespace

std::vector<AnswerSummary> Summarize(const std::vector<AnswerRecord>& records) {
  DenseAnswers dense;
  std::map<std::pair<std::string, int>, std::set<std::string>> tasks;  // by (mode, chars)
  for (const AnswerRecord& r : records) {
    if (r.spec == "dense") dense[{r.mode, r.id}] = r.exact;
    tasks[{r.mode, r.chars}].insert(r.task);
  }
  FirstSeen<std::string> mode_rank, task_rank;
  FirstSeen<std::pair<std::string, uint32_t>> spec_rank;
  for (const AnswerRecord& r : records) task_rank.Rank(r.task);
  using Key = std::tuple<size_t, int, size_t, size_t>;  // mode, chars, task, specification
  std::map<Key, std::vector<const AnswerRecord*>> groups;
  for (const AnswerRecord& r : records) {
    const size_t mode = mode_rank.Rank(r.mode), spec = spec_rank.Rank({r.spec, r.budget});
    groups[{mode, r.chars, task_rank.Rank(r.task), spec}].push_back(&r);
    if (tasks[{r.mode, r.chars}].size() > 1) groups[{mode, r.chars, SIZE_MAX, spec}].push_back(&r);
  }
  std::vector<AnswerSummary> summaries;
  for (const auto& [key, group] : groups) {
    AnswerSummary summary = SummarizeGroup(group, dense);
    const AnswerRecord& first = *group.front();
    summary.mode = first.mode;
    summary.task = std::get<2>(key) == SIZE_MAX ? std::string(kAllTasks) : first.task;
    summary.chars = first.chars;
    summary.spec = first.spec;
    summary.budget = first.budget;
    summaries.push_back(std::move(summary));
  }
  return summaries;
}

std::string SpecLabel(const std::string& spec, uint32_t budget) {
  return budget == 0 ? spec : absl::StrCat(spec, ":", budget);
}

std::string SummaryCsv(const std::vector<AnswerSummary>& summaries) {
  std::string csv =
      "mode,task,chars,prompt_tokens,spec,budget,prompts,exact,exact_share,exact_low,exact_high,token_share,paired,"
      "lost,gained,sign_test,mass_mean,mass_p5,hit_ratio,rows_per_step,bytes_per_step,key_bytes_per_step,"
      "mass_before_mean,corrections_per_step,correction_rows_per_step,mass_floor_share,attended_rows_per_step\n";
  const auto number = [](double value) { return absl::StrFormat("%.6g", value); };
  for (const AnswerSummary& s : summaries) {
    absl::StrAppend(&csv,
                    CsvLine({s.mode,
                             s.task,
                             absl::StrCat(s.chars),
                             number(s.prompt_tokens),
                             s.spec,
                             absl::StrCat(s.budget),
                             absl::StrCat(s.prompts),
                             absl::StrCat(s.exact),
                             number(s.exact_share()),
                             number(s.exact_interval.low),
                             number(s.exact_interval.high),
                             number(s.token_share),
                             absl::StrCat(s.paired),
                             absl::StrCat(s.lost),
                             absl::StrCat(s.gained),
                             number(s.sign_test),
                             s.has_mass ? number(s.mass_mean) : "",
                             s.mass_p5.has_value() ? number(*s.mass_p5) : "",
                             number(s.hit_ratio),
                             number(s.rows_per_step),
                             number(s.bytes_per_step),
                             number(s.key_bytes_per_step),
                             number(s.mass_before_mean),
                             number(s.corrections_per_step),
                             number(s.correction_rows_per_step),
                             s.has_mass ? number(s.floor_share) : "",
                             number(s.attended_rows_per_step)}),
                    "\n");
  }
  return csv;
}

std::string SummaryTable(const std::vector<AnswerSummary>& summaries) {
  std::string table;
  size_t width = 10;
  for (const AnswerSummary& s : summaries) width = std::max(width, SpecLabel(s.spec, s.budget).size());
  const AnswerSummary* previous = nullptr;
  for (const AnswerSummary& s : summaries) {
    if (previous == nullptr || previous->mode != s.mode || previous->task != s.task || previous->chars != s.chars) {
      absl::StrAppendFormat(&table, "\n%s, %d characters (%.0f tokens), %d prompts, %s\n", s.task, s.chars,
                            s.prompt_tokens, s.prompts, s.mode);
      absl::StrAppendFormat(&table, "%-*s %6s %13s %7s %5s %6s %6s %6s %6s %6s %9s %9s %9s %9s %9s %9s\n",
                            static_cast<int>(width), "selection", "exact", "(95 %)", "tokens", "lost", "gained", "mass",
                            "p5", ">=.95", "hits", "attended", "rows/step", "KB/step", "keys KB", "corrected",
                            "by rows");
    }
    previous = &s;
    absl::StrAppendFormat(&table, "%-*s %6.2f   (%.2f-%.2f) %7.3f %5d %6d ", static_cast<int>(width),
                          SpecLabel(s.spec, s.budget), s.exact_share(), s.exact_interval.low, s.exact_interval.high,
                          s.token_share, s.lost, s.gained);
    absl::StrAppendFormat(&table, "%6s %6s %6s", s.has_mass ? absl::StrFormat("%.3f", s.mass_mean) : "",
                          s.mass_p5.has_value() ? absl::StrFormat("%.3f", *s.mass_p5) : "",
                          s.has_mass ? absl::StrFormat("%.4f", s.floor_share) : "");
    absl::StrAppendFormat(&table, " %6.3f %9.1f %9.1f %9.1f %9.1f %9.2f %9.1f\n", s.hit_ratio, s.attended_rows_per_step,
                          s.rows_per_step, s.bytes_per_step / 1024, s.key_bytes_per_step / 1024, s.corrections_per_step,
                          s.correction_rows_per_step);
  }
  return table;
}

}  // namespace winnow
