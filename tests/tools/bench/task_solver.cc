#include "tests/tools/bench/task_solver.h"

#include <map>
#include <regex>
#include <sstream>
#include <vector>

namespace winnow::test {
namespace {

using Match = std::smatch;

// Every line that is of that form, in order.
std::vector<Match> Lines(const std::vector<std::string>& lines, const std::string& form) {
  const std::regex pattern(form);
  std::vector<Match> matches;
  for (const std::string& line : lines) {
    if (Match match; std::regex_match(line, match, pattern)) matches.push_back(match);
  }
  return matches;
}

std::string Walk(const std::vector<std::string>& lines, std::string node, int links) {
  std::map<std::string, std::string> next;
  for (const Match& m : Lines(lines, "(\\w+) leads to (\\w+)\\.")) next[m[1]] = m[2];
  std::string path = node;
  for (int i = 0; i < links; ++i) path += " -> " + (node = next.at(node));
  return path + ".";
}

std::string Chain(const std::vector<std::string>& lines, const std::string& value) {
  std::string path, holder;
  for (const Match& m : Lines(lines, "VAR (\\w+) = (\\d+)\\.")) {
    if (m[2] == value) path = holder = m[1];
  }
  for (const Match& m : Lines(lines, "VAR (\\w+) = VAR (\\w+)\\.")) {
    if (m[2] != holder) continue;
    holder = m[1];
    path += ", " + holder;
  }
  return path + ".";
}

std::string RunningSum(const std::vector<std::string>& lines, int items, const std::string& name) {
  std::string steps;
  int total = 0, seen = 0;
  for (const Match& m : Lines(lines, "Item (\\d+) of " + name + " is (\\d+)\\.")) {
    total += std::stoi(m[2]);
    steps += (seen++ > 0 ? "; item " : "item ") + m[1].str() + ": " + m[2].str() + ", total " + std::to_string(total);
  }
  return seen != items ? "" : steps + ". The sum is " + std::to_string(total) + ".";
}

}  // namespace

std::optional<std::string> SolveTask(const std::string& prompt) {
  const size_t cut = prompt.rfind("\n\n");
  if (cut == std::string::npos) return std::nullopt;
  const std::string context = prompt.substr(0, cut), question = prompt.substr(cut + 2);
  std::vector<std::string> lines;
  std::stringstream stream(context);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);

  Match m;
  if (std::regex_match(question, m, std::regex("What is the code of (\\w+)\\?"))) {
    const std::vector<Match> found = Lines(lines, "The code of " + m[1].str() + " is \\d{6}\\.");
    return found.size() == 1 ? std::optional(found[0].str()) : std::nullopt;
  }
  if (std::regex_match(question, m, std::regex("List all numbers of (\\w+) in order\\."))) {
    std::string list;
    for (const Match& value : Lines(lines, m[1].str() + " got the number (\\d{4})\\.")) {
      list += (list.empty() ? "" : ", ") + value[1].str();
    }
    return list + ".";
  }
  if (std::regex_match(question, m, std::regex("Which variables hold (\\d{5})\\?"))) return Chain(lines, m[1]);
  if (std::regex_match(question, m, std::regex("Start at (\\w+) and follow (\\d+) links\\."))) {
    return Walk(lines, m[1], std::stoi(m[2]));
  }
  if (std::regex_match(question, m, std::regex("Add up the (\\d+) items of (\\w+), step by step\\."))) {
    return RunningSum(lines, std::stoi(m[1]), m[2]);
  }
  if (std::regex_match(question, m, std::regex("Repeat the passage <(\\w+)>\\."))) {
    const std::string open = "<" + m[1].str() + ">\n", close = "\n</" + m[1].str() + ">";
    const size_t begin = context.find(open), end = context.find(close);
    if (begin == std::string::npos || end == std::string::npos) return std::nullopt;
    return context.substr(begin + open.size(), end - begin - open.size());
  }
  return std::nullopt;
}

}  // namespace winnow::test
