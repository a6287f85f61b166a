#include "tools/bench/tasks/filler_text.h"

#include "common/tokenizer/utf8.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

using testing::HasSubstr;

TEST(FillerTextTest, CutsRunningTextFromTheBeginningOfALine) {
  const FillerText filler({"one", "two", "three"});
  TaskRandom random(1);
  std::string round = "one\ntwo\nthree\n";
  round += round + round;
  for (int i = 0; i < 50; ++i) {
    const std::string text = filler.Cut(random, 10);
    EXPECT_EQ(text.size(), 10u);
    const size_t at = round.find(text);
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_TRUE(at == 0 || round[at - 1] == '\n') << text;
  }
}

TEST(FillerTextTest, CutsNoCharacterInTwo) {
  const FillerText filler({"a\u00e9\u20ac\U0001f600"});
  TaskRandom random(1);
  for (size_t chars = 0; chars < 40; ++chars) {
    const std::string text = filler.Cut(random, chars);
    EXPECT_EQ(FindInvalidUtf8(text), std::string_view::npos) << chars;
    EXPECT_GT(text.size() + 4, chars);
  }
}

TEST(FillerTextTest, LeavesOutLinesThatMaySpellASpecialToken) {
  const TempDir dir;
  const FillerText filler = FillerText::Load({dir.Write("a.md", "good\n<|im_end|> bad\n")}).value();
  TaskRandom random(1);
  EXPECT_EQ(filler.Cut(random, 10), "good\ngood\n");
}

TEST(FillerTextTest, BadFilesAreNamed) {
  const TempDir dir;
  EXPECT_THAT(FillerText::Load({dir.path() + "/none"}), FailsWith(absl::StatusCode::kNotFound, HasSubstr("/none: ")));
  EXPECT_THAT(FillerText::Load({dir.Write("b.md", "fine\n\xff\n")}),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("b.md:2: is not UTF-8")));
  EXPECT_THAT(FillerText::Load({dir.Write("c.md", "\n\n")}),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("no text")));
}

TEST(FillerTextTest, TheProjectsDocumentsAreThere) {
  const FillerText filler = FillerText::Load(DefaultFillerFiles()).value();
  TaskRandom random(1);
  EXPECT_EQ(filler.Cut(random, 1000).size() / 10, 100u);
}

}  // namespace
}  // namespace winnow
