#include "tools/bench/quality/answer_summary.h"

#include <gmock/gmock.h>

#include "absl/strings/str_split.h"

namespace winnow {
namespace {

AnswerRecord Answer(const std::string& task, int number, const std::string& spec, bool exact) {
  AnswerRecord r;
  r.mode = "forced";
  r.id = absl::StrCat(task, "-", number);
  r.task = task;
  r.chars = 100;
  r.prompt_tokens = 30 + static_cast<uint32_t>(number);
  r.answer_tokens = 10;
  r.right_tokens = exact ? 10 : 7;
  r.exact = exact;
  r.spec = spec;
  r.budget = spec == "dense" ? 0 : 64;
  r.decode_steps = 9;
  return r;
}

const AnswerSummary& Find(const std::vector<AnswerSummary>& all, const std::string& task, const std::string& spec) {
  for (const AnswerSummary& s : all) {
    if (s.task == task && s.spec == spec) return s;
  }
  ADD_FAILURE() << "no summary of " << task << ", " << spec;
  return all.front();
}

TEST(AnswerSummaryTest, PairsEachAnswerWithDense) {
  std::vector<AnswerRecord> records;
  const bool dense[] = {true, true, true, false, false}, sparse[] = {true, false, false, true, false};
  for (int i = 0; i < 5; ++i) {
    // In another order than dense: pairs are found by the prompt's id.
    records.push_back(Answer("walk", i, "dense", dense[i]));
    records.insert(records.begin(), Answer("walk", i, "winnow", sparse[i]));
  }
  records.push_back(Answer("walk", 9, "winnow", false));  // dense has not answered it
  const AnswerSummary& s = Find(Summarize(records), "walk", "winnow");
  EXPECT_EQ(s.prompts, 6);
  EXPECT_EQ(s.exact, 2);
  EXPECT_EQ(s.paired, 5);
  EXPECT_EQ(s.lost, 2);
  EXPECT_EQ(s.gained, 1);
  EXPECT_DOUBLE_EQ(s.sign_test, SignTest(2, 1));
  EXPECT_DOUBLE_EQ(s.token_share, (2 * 10 + 4 * 7) / 60.0);
  EXPECT_DOUBLE_EQ(s.prompt_tokens, (30 + 31 + 32 + 33 + 34 + 39) / 6.0);
}

TEST(AnswerSummaryTest, WeighsMassesAndRatesByTheirCounts) {
  AnswerRecord a = Answer("walk", 0, "winnow", true), b = Answer("walk", 1, "winnow", true);
  a.decode_steps = 10;
  a.mass_count = 90;
  a.mass_mean = 0.9;
  a.mass_bins = {{900, 90}};
  a.attended_rows = 1000;
  a.correction_rows = 40;
  a.selection_lookups = 100;
  a.selection_hits = 90;
  a.streamed_rows = 10;
  a.streamed_bytes = 1280;
  a.scored_key_bytes = 1000;
  b.decode_steps = 30;
  b.mass_count = 10;
  b.mass_mean = 0.5;
  b.mass_bins = {{499, 6}, {949, 1}, {950, 3}};
  b.attended_rows = 600;
  b.selection_lookups = 300;
  b.selection_hits = 150;
  b.streamed_rows = 150;
  b.streamed_bytes = 19200;
  b.scored_key_bytes = 5000;
  const AnswerSummary s = Summarize({a, b}).front();
  EXPECT_TRUE(s.has_mass);
  EXPECT_DOUBLE_EQ(s.mass_mean, 0.86);
  EXPECT_DOUBLE_EQ(s.mass_p5.value(), 0.499);  // the sixth of a hundred, from below
  EXPECT_DOUBLE_EQ(s.floor_share, 0.03);
  EXPECT_DOUBLE_EQ(s.attended_rows_per_step, 40);
  EXPECT_DOUBLE_EQ(s.correction_rows_per_step, 1);
  EXPECT_DOUBLE_EQ(s.hit_ratio, 0.6);
  EXPECT_DOUBLE_EQ(s.rows_per_step, 4);
  EXPECT_DOUBLE_EQ(s.bytes_per_step, 512);
  EXPECT_DOUBLE_EQ(s.key_bytes_per_step, 150);
}

TEST(AnswerSummaryTest, AddsALineOverAllTasksWhereThereAreSeveral) {
  std::vector<AnswerRecord> records;
  for (const char* task : {"walk", "needle"}) {
    for (const char* spec : {"dense", "winnow"}) records.push_back(Answer(task, 0, spec, spec[0] == 'd'));
  }
  std::vector<std::string> order;
  for (const AnswerSummary& s : Summarize(records)) order.push_back(s.task + " " + SpecLabel(s.spec, s.budget));
  EXPECT_THAT(order, testing::ElementsAre("walk dense", "walk winnow:64", "needle dense", "needle winnow:64",
                                          "all dense", "all winnow:64"));
  EXPECT_EQ(Find(Summarize(records), "all", "winnow").lost, 2);
  EXPECT_EQ(Summarize({records[0], records[1]}).size(), 2u);
}

TEST(AnswerSummaryTest, KnowsNoPercentileWithoutADistribution) {
  AnswerRecord a = Answer("walk", 0, "winnow", true);
  a.mass_count = 9;
  a.mass_mean = 0.9;
  const AnswerSummary s = Summarize({a}).front();
  EXPECT_DOUBLE_EQ(s.mass_mean, 0.9);
  EXPECT_FALSE(s.mass_p5.has_value());
}

TEST(AnswerSummaryTest, KeepsGreedyAndForcedAnswersApart) {
  AnswerRecord greedy = Answer("walk", 0, "winnow", false);
  greedy.mode = "greedy";
  const std::vector<AnswerSummary> all =
      Summarize({Answer("walk", 0, "dense", true), Answer("walk", 0, "winnow", true), greedy});
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[2].mode, "greedy");
  EXPECT_EQ(all[2].paired, 0);
}

TEST(AnswerSummaryTest, EveryLineOfTheCsvHasAllColumns) {
  const std::string csv = SummaryCsv(Summarize({Answer("walk", 0, "dense", true), Answer("walk", 0, "winnow", true)}));
  const std::vector<std::string> lines = absl::StrSplit(csv, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3u);
  for (const std::string& line : lines) {
    EXPECT_EQ(std::count(line.begin(), line.end(), ','), std::count(lines[0].begin(), lines[0].end(), ',')) << line;
  }
}

}  // namespace
}  // namespace winnow
