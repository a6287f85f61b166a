#include "tools/bench/tasks/prompt_file.h"

#include <sstream>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const TaskPrompt kFirst{
    .id = "needle-3000-0", .task = "needle", .chars = 3000, .prompt = "a \"b\"\n\u20ac\n\nWhat?", .answer = "x."};
const TaskPrompt kSecond{.id = "walk-50-1", .task = "walk", .chars = 50, .prompt = "p", .answer = "a -> b."};

absl::StatusOr<std::vector<TaskPrompt>> Parse(const std::string& text) {
  std::stringstream in(text);
  return ParsePrompts(in, "eval.jsonl");
}

TEST(PromptFileTest, ReadsWhatItWrites) {
  const TempDir dir;
  const std::string file = dir.path() + "/prompts.jsonl";
  ASSERT_THAT(WritePrompts(file, {kFirst, kSecond}), IsOkStatus());
  EXPECT_THAT(ReadPrompts(file).value(), ElementsAre(kFirst, kSecond));
}

TEST(PromptFileTest, ReadsOtherOrdersFurtherFieldsAndEmptyLines) {
  EXPECT_THAT(Parse("\n{\"answer\":\"a -> b.\",\"chars\":50,\"by\":1,\"prompt\":\"p\",\"task\":\"walk\",\"id\":"
                    "\"walk-50-1\"}\n\n")
                  .value(),
              ElementsAre(kSecond));
}

TEST(PromptFileTest, ErrorsNameFileAndLine) {
  const std::string good = PromptLine(kSecond) + "\n";
  const auto fails = [](const std::string& what) {
    return FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  EXPECT_THAT(Parse(good + "{\"id\":"), fails("eval.jsonl:2: is no JSON object"));
  EXPECT_THAT(Parse("[1]\n"), fails("eval.jsonl:1: is no JSON object"));
  EXPECT_THAT(Parse(good + "\n{\"id\":\"x\",\"task\":\"t\",\"prompt\":\"p\",\"chars\":3}"),
              fails("eval.jsonl:3: field \"answer\" is missing"));
  EXPECT_THAT(Parse("{\"id\":7}"), fails("eval.jsonl:1: field \"id\" is no string"));
  EXPECT_THAT(Parse("{\"id\":\"x\",\"task\":\"t\",\"prompt\":\"\",\"answer\":\"a\",\"chars\":3}"),
              fails("field \"prompt\" is empty"));
  EXPECT_THAT(Parse("{\"id\":\"x\",\"task\":\"t\",\"prompt\":\"p\",\"answer\":\"a\",\"chars\":-3}"),
              fails("field \"chars\""));
  EXPECT_THAT(Parse(good + good), fails("eval.jsonl:2: id \"walk-50-1\" occurs twice"));
  EXPECT_THAT(Parse("\n"), fails("eval.jsonl: holds no prompts"));
  EXPECT_THAT(ReadPrompts("/nowhere/p.jsonl"), FailsWith(absl::StatusCode::kNotFound, HasSubstr("/nowhere/p.jsonl")));
}

}  // namespace
}  // namespace winnow
