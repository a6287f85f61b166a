#include "tools/bench/tasks/prompt_generator.h"

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace winnow {
namespace {

// What the chat form adds around question and answer.
constexpr size_t kChatChars = 60;
constexpr size_t kLeastFillerChars = 200;

// FNV-1a: a seed of its own for every prompt.
uint64_t PromptSeed(uint64_t seed, std::string_view id) {
  uint64_t hash = 0xcbf29ce484222325 ^ (seed * 0x9e3779b97f4a7c15);
  for (const char c : id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

std::string ComposePrompt(TaskRandom& random, const FillerText& filler, const TaskText& task, int chars) {
  size_t taken = task.question.size() + task.answer.size() + kChatChars;
  for (const std::string& fact : task.facts) taken += fact.size() + 1;
  const size_t room = static_cast<size_t>(chars) > taken ? chars - taken : 0;
  std::vector<std::string> lines;
  if (room > kLeastFillerChars) lines = absl::StrSplit(filler.Cut(random, room), '\n');
  std::vector<size_t> places;
  for (size_t i = 0; i < task.facts.size(); ++i) places.push_back(random.Below(lines.size() + 1));
  std::sort(places.begin(), places.end());
  std::vector<std::string> out;
  for (size_t line = 0, fact = 0; line <= lines.size(); ++line) {
    for (; fact < places.size() && places[fact] == line; ++fact) out.push_back(task.facts[fact]);
    if (line < lines.size()) out.push_back(lines[line]);
  }
  return absl::StrCat(absl::StrJoin(out, "\n"), "\n\n", task.question);
}

absl::StatusOr<std::vector<TaskPrompt>> GeneratePrompts(const PromptPlan& plan, const FillerText& filler) {
  std::vector<TaskPrompt> prompts;
  for (const std::string& name : plan.tasks) {
    for (const int chars : plan.chars) {
      for (int i = 0; i < plan.count; ++i) {
        TaskPrompt prompt{.id = absl::StrCat(name, "-", chars, "-", i), .task = name, .chars = chars};
        TaskRandom random(PromptSeed(plan.seed, prompt.id));
        WINNOW_ASSIGN_OR_RETURN(TaskText task, MakeTask(name, random, chars, [&](TaskRandom& r, size_t length) {
                                  return filler.Cut(r, length);
                                }));
        prompt.prompt = ComposePrompt(random, filler, task, chars);
        prompt.answer = std::move(task.answer);
        prompts.push_back(std::move(prompt));
      }
    }
  }
  return prompts;
}

}  // namespace winnow
