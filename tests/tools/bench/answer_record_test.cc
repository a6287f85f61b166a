#include "tools/bench/quality/answer_record.h"

#include <sstream>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

AnswerRecord Sample(const std::string& id, const std::string& spec, uint32_t budget) {
  AnswerRecord r;
  r.mode = "forced";
  r.id = id;
  r.task = "needle";
  r.chars = 12000;
  r.prompt_tokens = 3761;
  r.answer_tokens = 17;
  r.spec = spec;
  r.budget = budget;
  r.right_tokens = 16;
  r.exact = false;
  r.decode_steps = 16;
  r.mass_count = 3;
  r.mass_mean = 0.9375;
  r.mass_bins = {{873, 1}, {969, 2}};
  r.mass_before_mean = 0.5;
  r.corrections = 7;
  r.correction_rows = 900;
  r.attended_rows = 5000;
  r.selection_lookups = 4096;
  r.selection_hits = 4000;
  r.streamed_rows = 96;
  r.streamed_bytes = uint64_t{96} << 40;
  r.scored_key_bytes = 1234567;
  return r;
}

absl::StatusOr<std::vector<AnswerRecord>> Parse(const std::string& text) {
  std::stringstream in(text);
  return ParseAnswers(in, "answers.csv");
}

TEST(AnswerRecordTest, ReadsWhatItWrites) {
  const AnswerRecord plain = Sample("a", "dense", 0);
  const AnswerRecord quoted = Sample("b,\"c\"", "winnow,lookahead=2", 256);
  const std::string text = AnswerHeader() + "\n" + AnswerLine(plain) + "\n" + AnswerLine(quoted) + "\n";
  EXPECT_THAT(Parse(text).value(), ElementsAre(plain, quoted));
}

TEST(AnswerRecordTest, FindsColumnsByName) {
  const AnswerRecord record = Sample("a", "dense", 0);
  const std::string text = "note," + AnswerHeader() + "\r\n\"x, y\"," + AnswerLine(record) + "\r\n";
  EXPECT_THAT(Parse(text).value(), ElementsAre(record));
}

TEST(AnswerRecordTest, ReadsFilesFromBeforeAttendedRowsWereCounted) {
  AnswerRecord record = Sample("a", "dense", 0);
  std::string text = AnswerHeader() + "\n" + AnswerLine(record) + "\n";
  text.replace(text.find("attended_rows"), 13, "of_no_meaning");
  record.attended_rows = 0;
  EXPECT_THAT(Parse(text).value(), ElementsAre(record));
}

TEST(AnswerRecordTest, ErrorsNameFileAndLine) {
  const std::string good = AnswerHeader() + "\n" + AnswerLine(Sample("a", "dense", 0)) + "\n";
  const auto fails = [](const std::string& what) {
    return FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  EXPECT_THAT(Parse(""), fails("answers.csv: is empty"));
  EXPECT_THAT(Parse(good + "a,b\n"), fails("answers.csv:3: has 2 fields, the header has 23"));
  EXPECT_THAT(Parse(good + "\"a\n"), fails("answers.csv:3: a quote is not closed"));
  EXPECT_THAT(Parse("id,spec\na,b\n"), fails("answers.csv: column \"mode\" is missing"));
  std::string bad = AnswerLine(Sample("a", "dense", 0));
  bad.replace(bad.find("3761"), 4, "many");
  EXPECT_THAT(Parse(good + bad), fails("answers.csv:3: \"many\" is no value of prompt_tokens"));
  std::string bins = AnswerLine(Sample("a", "dense", 0));
  bins.replace(bins.find("873:1"), 5, "8730:1");
  EXPECT_THAT(Parse(good + bins), fails("no value of mass_bins"));
}

TEST(AnswerRecordTest, MergesTheShardsOfARun) {
  const TempDir dir;
  const AnswerRecord a = Sample("a", "dense", 0), b = Sample("b", "dense", 0), c = Sample("b", "winnow", 256);
  const std::string first = dir.Write("1.csv", AnswerHeader() + "\n" + AnswerLine(a) + "\n");
  const std::string second = dir.Write("2.csv", AnswerHeader() + "\n" + AnswerLine(b) + "\n" + AnswerLine(c) + "\n");
  EXPECT_THAT(MergeAnswers({first, second}).value(), ElementsAre(a, b, c));
  EXPECT_THAT(MergeAnswers({second, second}),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("2.csv: dense:0 answers b a second time")));
  EXPECT_THAT(MergeAnswers({dir.path() + "/3.csv"}), FailsWith(absl::StatusCode::kNotFound, HasSubstr("3.csv")));
}

}  // namespace
}  // namespace winnow
