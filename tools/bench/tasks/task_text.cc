#include "tools/bench/tasks/task_text.h"

#include <array>
#include <unordered_set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"

namespace winnow {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"needle", "multi_value", "variables",
                                                    "walk",   "running_sum", "copy"};

// A made-up word: syllables of a consonant and a vowel, half of them closed by another consonant.
std::string Word(TaskRandom& random, int syllables) {
  constexpr std::string_view kConsonants = "bcdfghjklmnprstvz", kVowels = "aeiou", kEndings = "nrstlm";
  std::string word;
  for (int i = 0; i < syllables; ++i) {
    word += random.Choice(kConsonants);
    word += random.Choice(kVowels);
  }
  if (random.Below(2) == 0) word += random.Choice(kEndings);
  return word;
}

std::vector<std::string> DistinctWords(TaskRandom& random, size_t count, int syllables) {
  std::vector<std::string> words;
  std::unordered_set<std::string> seen;
  while (words.size() < count) {
    std::string word = Word(random, syllables);
    if (seen.insert(word).second) words.push_back(std::move(word));
  }
  return words;
}

std::string Digits(TaskRandom& random, int count) {
  std::string digits;
  for (int i = 0; i < count; ++i) digits += static_cast<char>('0' + random.Below(10));
  return digits;
}

TaskText Needle(TaskRandom& random) {
  constexpr std::array<size_t, 7> kCodes = {1, 1, 2, 4, 8, 16, 32};
  const std::vector<std::string> keys = DistinctWords(random, random.Choice(kCodes), 3);
  TaskText task;
  for (const std::string& key : keys) {
    task.facts.push_back(absl::StrCat("The code of ", key, " is ", Digits(random, 6), "."));
  }
  const size_t asked = random.Below(keys.size());
  task.question = absl::StrCat("What is the code of ", keys[asked], "?");
  task.answer = task.facts[asked];
  return task;
}

TaskText MultiValue(TaskRandom& random) {
  const std::vector<std::string> keys = DistinctWords(random, random.Between(1, 4), 3);
  const int values_per_key = random.Between(2, 8);
  std::vector<size_t> order;
  for (size_t key = 0; key < keys.size(); ++key) order.insert(order.end(), values_per_key, key);
  random.Shuffle(order);
  std::vector<std::vector<std::string>> values(keys.size());
  TaskText task;
  for (const size_t key : order) {
    values[key].push_back(Digits(random, 4));
    task.facts.push_back(absl::StrCat(keys[key], " got the number ", values[key].back(), "."));
  }
  const size_t asked = random.Below(keys.size());
  task.question = absl::StrCat("List all numbers of ", keys[asked], " in order.");
  task.answer = absl::StrCat(absl::StrJoin(values[asked], ", "), ".");
  return task;
}

TaskText Variables(TaskRandom& random) {
  const size_t chains = random.Between(1, 4), hops = random.Between(2, 6);
  const std::vector<std::string> names = DistinctWords(random, chains * hops, 2);
  const size_t asked = random.Below(chains);
  TaskText task;
  std::vector<std::vector<std::string>> steps(chains);
  for (size_t chain = 0; chain < chains; ++chain) {
    const std::string* variables = names.data() + chain * hops;
    const std::string value = Digits(random, 5);
    steps[chain].push_back(absl::StrCat("VAR ", variables[0], " = ", value, "."));
    for (size_t i = 1; i < hops; ++i) {
      steps[chain].push_back(absl::StrCat("VAR ", variables[i], " = VAR ", variables[i - 1], "."));
    }
    if (chain != asked) continue;
    task.question = absl::StrCat("Which variables hold ", value, "?");
    task.answer = absl::StrCat(absl::StrJoin(variables, variables + hops, ", "), ".");
  }
  // Chains are interleaved, each in its own order.
  std::vector<size_t> next(chains, 0), open(chains);
  std::iota(open.begin(), open.end(), size_t{0});
  while (!open.empty()) {
    const size_t at = random.Below(open.size()), chain = open[at];
    task.facts.push_back(steps[chain][next[chain]++]);
    if (next[chain] == hops) open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return task;
}

TaskText Walk(TaskRandom& random) {
  constexpr std::array<size_t, 7> kNodes = {8, 12, 16, 24, 32, 48, 64};
  const std::vector<std::string> names = DistinctWords(random, random.Choice(kNodes), 2);
  std::vector<size_t> ring(names.size()), next(names.size());
  std::iota(ring.begin(), ring.end(), size_t{0});
  random.Shuffle(ring);
  for (size_t i = 0; i < ring.size(); ++i) next[ring[i]] = ring[(i + 1) % ring.size()];
  TaskText task;
  for (size_t i = 0; i < names.size(); ++i) {
    task.facts.push_back(absl::StrCat(names[i], " leads to ", names[next[i]], "."));
  }
  size_t node = random.Below(names.size());
  const int links = random.Between(3, std::min<int>(static_cast<int>(names.size()), 40));
  task.question = absl::StrCat("Start at ", names[node], " and follow ", links, " links.");
  task.answer = names[node];
  for (int i = 0; i < links; ++i) {
    node = next[node];
    absl::StrAppend(&task.answer, " -> ", names[node]);
  }
  task.answer += ".";
  return task;
}

TaskText RunningSum(TaskRandom& random) {
  constexpr std::array<int, 6> kItems = {5, 8, 12, 16, 24, 32};
  const int items = random.Choice(kItems);
  const std::string name = Word(random, 3);
  TaskText task;
  std::vector<std::string> steps;
  int total = 0;
  for (int i = 1; i <= items; ++i) {
    const int value = random.Between(1, 99);
    total += value;
    task.facts.push_back(absl::StrCat("Item ", i, " of ", name, " is ", value, "."));
    steps.push_back(absl::StrCat("item ", i, ": ", value, ", total ", total));
  }
  task.question = absl::StrCat("Add up the ", items, " items of ", name, ", step by step.");
  task.answer = absl::StrCat(absl::StrJoin(steps, "; "), ". The sum is ", total, ".");
  return task;
}

TaskText Copy(TaskRandom& random, int chars, const std::function<std::string(TaskRandom&, size_t)>& passage) {
  const int length = random.Between(80, std::min(1500, std::max(100, chars / 3)));
  TaskText task;
  task.answer = passage(random, static_cast<size_t>(length));
  absl::StripAsciiWhitespace(&task.answer);
  const std::string tag = Word(random, 3);
  task.facts.push_back(absl::StrCat("<", tag, ">\n", task.answer, "\n</", tag, ">"));
  task.question = absl::StrCat("Repeat the passage <", tag, ">.");
  return task;
}

}  // namespace

std::span<const std::string_view> TaskNames() {
  return kNames;
}

absl::StatusOr<TaskText> MakeTask(std::string_view name, TaskRandom& random, int chars,
                                  const std::function<std::string(TaskRandom&, size_t)>& passage) {
  if (name == "needle") return Needle(random);
  if (name == "multi_value") return MultiValue(random);
  if (name == "variables") return Variables(random);
  if (name == "walk") return Walk(random);
  if (name == "running_sum") return RunningSum(random);
  if (name == "copy") return Copy(random, chars, passage);
  std::string names;
  for (const std::string_view known : kNames) absl::StrAppend(&names, names.empty() ? "" : ", ", AbslSv(known));
  return absl::InvalidArgumentError(absl::StrCat("unknown task \"", AbslSv(name), "\"; there are: ", names));
}

}  // namespace winnow
