#include "tools/bench/tasks/prompt_generator.h"

#include <set>

#include "tests/support/status_matchers.h"
#include "tests/tools/bench/task_solver.h"

namespace winnow {
namespace {

using testing::HasSubstr;

// 400 lines of 60 characters.
const FillerText& Filler() {
  static const FillerText filler = [] {
    std::vector<std::string> lines;
    for (int i = 0; i < 400; ++i) {
      std::string line = absl::StrCat("line ", i, " ");
      line.resize(60, '.');
      lines.push_back(line);
    }
    return FillerText(std::move(lines));
  }();
  return filler;
}

PromptPlan AllTasks(int chars, int count) {
  PromptPlan plan{.tasks = {}, .chars = {chars}, .count = count, .seed = 7};
  for (const std::string_view name : TaskNames()) plan.tasks.emplace_back(name);
  return plan;
}

std::vector<TaskPrompt> Generate(const PromptPlan& plan) {
  return GeneratePrompts(plan, Filler()).value();
}

TEST(PromptGeneratorTest, AnswersFollowFromWhatThePromptSays) {
  const std::vector<TaskPrompt> prompts = Generate(AllTasks(6000, 60));
  ASSERT_EQ(prompts.size(), 360u);
  for (const TaskPrompt& prompt : prompts) {
    EXPECT_EQ(test::SolveTask(prompt.prompt), prompt.answer) << prompt.id << "\n" << prompt.prompt;
  }
}

TEST(PromptGeneratorTest, PromptsAreAboutAsLongAsAskedFor) {
  for (const int chars : {3000, 12000, 50000}) {
    for (const TaskPrompt& prompt : Generate(AllTasks(chars, 8))) {
      const double length = static_cast<double>(prompt.prompt.size() + prompt.answer.size());
      EXPECT_NEAR(length, chars, 120) << prompt.id;
      EXPECT_EQ(prompt.chars, chars);
    }
  }
}

// Runs on different machines must ask the same questions, so the bytes are pinned.
TEST(PromptGeneratorTest, ASeedAlwaysMakesTheSamePrompts) {
  const std::vector<TaskPrompt> prompts =
      Generate({.tasks = {"needle", "walk"}, .chars = {300}, .count = 1, .seed = 1});
  const std::vector<TaskPrompt> again = Generate({.tasks = {"needle", "walk"}, .chars = {300}, .count = 1, .seed = 1});
  EXPECT_EQ(prompts, again);
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0].id, "needle-300-0");
  EXPECT_EQ(prompts[0].answer, "The code of cebozi is 690629.");
  EXPECT_EQ(prompts[1].answer,
            "huva -> duzir -> guni -> fucus -> cuvat -> lozem -> pipon -> zukel -> zapu -> keti -> hupi -> pecin -> "
            "libur -> mijen.");
}

TEST(PromptGeneratorTest, ALongerPlanBeginsWithTheShorterOnesPrompts) {
  const std::vector<TaskPrompt> few = Generate({.tasks = {"walk"}, .chars = {3000}, .count = 2, .seed = 3});
  const std::vector<TaskPrompt> many =
      Generate({.tasks = {"needle", "walk"}, .chars = {12000, 3000}, .count = 5, .seed = 3});
  for (const TaskPrompt& prompt : few) EXPECT_THAT(many, testing::Contains(prompt));
  const std::vector<TaskPrompt> other = Generate({.tasks = {"walk"}, .chars = {3000}, .count = 2, .seed = 4});
  EXPECT_NE(few[0].prompt, other[0].prompt);
}

TEST(PromptGeneratorTest, FactsAreSpreadOverTheWholePrompt) {
  int early = 0, late = 0;
  for (const TaskPrompt& prompt : Generate({.tasks = {"needle"}, .chars = {12000}, .count = 200, .seed = 5})) {
    const size_t at = prompt.prompt.find(prompt.answer);
    ASSERT_NE(at, std::string::npos);
    early += at < 4000;
    late += at > 8000;
  }
  // Thirds of a uniform place: 67 expected, standard deviation 6.7; five of those.
  EXPECT_NEAR(early, 67, 34);
  EXPECT_NEAR(late, 67, 34);
}

// The ranges that the models were trained on.
TEST(TaskTextTest, SizesCoverTheirRanges) {
  TaskRandom random(11);
  const auto passage = [](TaskRandom& r, size_t length) { return Filler().Cut(r, length); };
  std::set<size_t> needles, nodes, links, items, values;
  std::set<size_t> passages;
  for (int i = 0; i < 600; ++i) {
    needles.insert(MakeTask("needle", random, 9000, passage)->facts.size());
    const TaskText walk = *MakeTask("walk", random, 9000, passage);
    nodes.insert(walk.facts.size());
    const size_t steps = static_cast<size_t>(std::count(walk.answer.begin(), walk.answer.end(), '>'));
    links.insert(steps);
    EXPECT_LE(steps, std::min<size_t>(walk.facts.size(), 40));
    items.insert(MakeTask("running_sum", random, 9000, passage)->facts.size());
    const std::string list = MakeTask("multi_value", random, 9000, passage)->answer;
    values.insert(1 + static_cast<size_t>(std::count(list.begin(), list.end(), ',')));
    passages.insert(MakeTask("copy", random, 9000, passage)->answer.size() / 500);
  }
  EXPECT_THAT(needles, testing::ElementsAre(1, 2, 4, 8, 16, 32));
  EXPECT_THAT(nodes, testing::ElementsAre(8, 12, 16, 24, 32, 48, 64));
  EXPECT_EQ(*links.begin(), 3u);
  EXPECT_EQ(*links.rbegin(), 40u);
  EXPECT_THAT(items, testing::ElementsAre(5, 8, 12, 16, 24, 32));
  EXPECT_EQ(*values.begin(), 2u);
  EXPECT_EQ(*values.rbegin(), 8u);
  EXPECT_THAT(passages, testing::IsSupersetOf({0u, 1u, 2u}));
}

TEST(TaskTextTest, AnUnknownTaskIsRefusedWithTheNamesThereAre) {
  TaskRandom random(1);
  EXPECT_THAT(MakeTask("neele", random, 100, nullptr),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("\"neele\"; there are: needle, multi_value")));
}

TEST(TaskRandomTest, ChoicesAreUniform) {
  TaskRandom random(2);
  std::vector<int> counts(7, 0);
  for (int i = 0; i < 70000; ++i) ++counts[random.Below(7)];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);  // five standard deviations of 93
}

}  // namespace
}  // namespace winnow
