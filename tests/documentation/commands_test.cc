// Command lines in the pages are ones that the program knows: its commands, and each option that they name.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/documentation/markdown.h"

namespace winnow {
namespace {

struct Help {
  bool ok = false;  // the command is known
  std::string text;
};

// Runs a command line of the shell; what it prints and whether it ended well. Each is run once.
const Help& HelpOf(const std::string& command) {
  static auto& known = *new std::map<std::string, Help>;
  const auto [it, is_new] = known.try_emplace(command);
  if (!is_new) return it->second;
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return it->second;
  std::array<char, 4096> buffer;
  while (const size_t size = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    it->second.text.append(buffer.data(), size);
  }
  it->second.ok = pclose(pipe) == 0;
  return it->second;
}

bool HasWord(const std::string& text, const std::string& word) {
  return std::regex_search(text, std::regex("(^|[^a-z-])" + word + "($|[^a-z-])"));
}

// Words of the program's part of a line: up to a pipe, a redirection, a comment or the next command.
std::vector<std::string> Words(const std::string& line) {
  static const std::regex end(R"(\s[|>&#]|;|\s\\$)");
  std::smatch match;
  const std::string own = std::regex_search(line, match, end) ? match.prefix().str() : line;
  return absl::StrSplit(own, ' ', absl::SkipEmpty());
}

bool IsWord(const std::string& text) {
  static const std::regex word("[a-z][a-z-]*");
  return std::regex_match(text, word);
}

// What is wrong with a command line of ./run; empty when nothing is.
std::string RunProblem(const std::vector<std::string>& words) {
  if (words.size() < 2 || !IsWord(words[1]) || words[1] == "help") return "";
  const Help& help = HelpOf(absl::StrCat(WINNOW_SOURCE_DIR, "/run help"));
  return HasWord(help.text, words[1]) ? "" : absl::StrCat("there is no command ./run ", words[1]);
}

// Commands that have commands of their own.
bool IsGroup(const std::string& command) {
  return absl::StrContains(HelpOf(absl::StrCat(WINNOW_BINARY, " ", command, " --help")).text, " COMMAND") ||
         command == "bench" || command == "config" || command == "deploy" || command == "keys";
}

// The same of one of winnow.
std::string WinnowProblem(const std::vector<std::string>& words) {
  if (const auto dashes = std::find(words.begin(), words.end(), "--"); dashes != words.end()) {
    // Of commands that start a cluster, what follows are options of `winnow up`.
    const std::string own = WinnowProblem({words.begin(), dashes});
    std::vector<std::string> up = {"winnow", "up"};
    up.insert(up.end(), dashes + 1, words.end());
    return own.empty() ? WinnowProblem(up) : own;
  }
  if (words.size() < 2 || !IsWord(words[1])) return "";  // "winnow COMMAND"
  std::string command = words[1];
  if (command == "help") {
    const bool has_options = words.size() > 2 && absl::StartsWith(words[2], "-");
    if (words.size() > 2 && IsWord(words[2])) {
      command = words[2];
    } else if (!has_options) {
      return "";
    }
  }
  const bool nested = words.size() > 2 && IsWord(words[2]) && IsGroup(command);
  if (nested) absl::StrAppend(&command, " ", words[2]);
  const Help& help = HelpOf(absl::StrCat(WINNOW_BINARY, " ", command, " --help"));
  if (!help.ok || (nested && !HasWord(help.text, words[2]))) {
    return absl::StrCat("there is no command winnow ", command);
  }
  for (const std::string& word : words) {
    static const std::regex option("--([a-z][a-z.-]*).*");
    std::smatch match;
    if (!std::regex_match(word, match, option) || match[1] == "help" || match[1] == "version") continue;
    if (!std::regex_search(help.text, std::regex("--" + match[1].str() + "($|[^a-z.-])"))) {
      return absl::StrCat("winnow ", command, " has no option --", match[1].str());
    }
  }
  return "";
}

TEST(DocumentationCommands, AreOnesThatTheProgramKnows) {
  int commands = 0;
  for (const std::string& path : MarkdownPaths()) {
    for (const MarkdownCommand& command : MarkdownPage(path).Commands()) {
      const std::vector<std::string> words = Words(command.text);
      EXPECT_EQ(words[0] == "./run" ? RunProblem(words) : WinnowProblem(words), "")
          << path << ":" << command.line << " " << command.text;
      ++commands;
    }
  }
  EXPECT_GT(commands, 100);
}

TEST(DocumentationCommands, OnesThatTheProgramDoesNotKnowAreFound) {
  EXPECT_EQ(WinnowProblem(Words("winnow dance")), "there is no command winnow dance");
  EXPECT_EQ(WinnowProblem(Words("winnow up --modle=x")), "winnow up has no option --modle");
  EXPECT_EQ(WinnowProblem(Words("winnow chaos --seed=1 -- --modle=x")), "winnow up has no option --modle");
  EXPECT_EQ(WinnowProblem(Words("winnow selection dance")), "there is no command winnow selection dance");
  EXPECT_EQ(WinnowProblem(Words("winnow keys dance FILE")), "there is no command winnow keys dance");
  EXPECT_EQ(WinnowProblem(Words("winnow generate --stats \"A question\" | head --lines=3")), "");
  EXPECT_EQ(RunProblem(Words("./run dance")), "there is no command ./run dance");
}

}  // namespace
}  // namespace winnow
