#include "tests/documentation/markdown.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <regex>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace winnow {
namespace {

// Text in backquotes is replaced by as many spaces.
std::string WithoutCode(std::string line) {
  static const std::regex code("`[^`]*`");
  for (std::smatch match; std::regex_search(line, match, code);) {
    const auto begin = line.begin() + match.position();
    line.replace(begin, begin + match.length(), static_cast<size_t>(match.length()), ' ');
  }
  return line;
}

// The program's name where a page calls it by its path, and nothing before it: assignments, "exec", a prompt.
std::string Command(absl::string_view text) {
  std::string command(absl::StripAsciiWhitespace(text));
  static const std::regex before(R"(^(?:\$ )?(?:[A-Z_]+=\S+ )*)");
  command = std::regex_replace(command, before, "", std::regex_constants::format_first_only);
  absl::string_view rest = command;
  absl::ConsumePrefix(&rest, "build/release/cmd/");
  return std::string(rest);
}

bool IsOurs(absl::string_view command) {
  return absl::StartsWith(command, "winnow ") || absl::StartsWith(command, "./run ");
}

}  // namespace

std::string ReadSource(const std::string& relative) {
  std::ifstream in(absl::StrCat(WINNOW_SOURCE_DIR, "/", relative));
  EXPECT_TRUE(in.is_open()) << relative;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::vector<std::string> MarkdownPaths() {
  std::vector<std::string> paths = {"README.md"};
  const std::filesystem::path root = WINNOW_SOURCE_DIR;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") paths.push_back(std::filesystem::relative(entry.path(), root).string());
  }
  return paths;
}

MarkdownPage::MarkdownPage(const std::string& path) : path_(path) {
  bool fenced = false, blank_before = true, indented = false;
  for (const absl::string_view text : absl::StrSplit(ReadSource(path), '\n')) {
    const bool fence = absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "```");
    // Four spaces after an empty line begin a block of code; within a list they may be its text.
    indented = absl::StartsWith(text, "    ") && (blank_before || indented);
    lines_.push_back({std::string(text), !fence && (fenced || indented)});
    if (fence) fenced = !fenced;
    blank_before = absl::StripAsciiWhitespace(text).empty();
  }
}

std::vector<MarkdownLink> MarkdownPage::Links() const {
  static const std::regex link(R"(\]\(([^)\s]+)(?: "[^"]*")?\))");
  std::vector<MarkdownLink> links;
  for (size_t i = 0; i < lines_.size(); ++i) {
    if (lines_[i].code) continue;
    const std::string text = WithoutCode(lines_[i].text);
    for (std::sregex_iterator match(text.begin(), text.end(), link), end; match != end; ++match) {
      links.push_back({(*match)[1].str(), static_cast<int>(i) + 1});
    }
  }
  return links;
}

std::set<std::string> MarkdownPage::Anchors() const {
  std::set<std::string> anchors;
  std::map<std::string, int> seen;
  for (const Line& line : lines_) {
    if (line.code || !absl::StartsWith(line.text, "#")) continue;
    absl::string_view title = line.text;
    while (absl::ConsumePrefix(&title, "#")) {
    }
    std::string anchor;
    for (const char c : absl::StripAsciiWhitespace(title)) {
      if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_') {
        anchor += absl::ascii_tolower(static_cast<unsigned char>(c));
      } else if (c == ' ') {
        anchor += '-';
      } else if (static_cast<unsigned char>(c) >= 0x80) {
        anchor += c;
      }
    }
    const int times = seen[anchor]++;
    anchors.insert(times == 0 ? anchor : absl::StrCat(anchor, "-", times));
  }
  return anchors;
}

std::vector<MarkdownCommand> MarkdownPage::Commands() const {
  std::vector<MarkdownCommand> commands;
  const auto add = [&](absl::string_view text, size_t line) {
    const std::string command = Command(text);
    if (IsOurs(command)) commands.push_back({command, static_cast<int>(line) + 1});
  };
  static const std::regex inline_code("`([^`]+)`");
  for (size_t i = 0; i < lines_.size(); ++i) {
    if (lines_[i].code) {
      std::string whole = lines_[i].text;
      const size_t first = i;
      while (absl::EndsWith(whole, "\\") && i + 1 < lines_.size()) {
        whole.pop_back();
        whole += lines_[++i].text;
      }
      add(whole, first);
      continue;
    }
    // Text between backquotes may go on in the next line.
    const std::string text =
        lines_[i].text + (i + 1 < lines_.size() && !lines_[i + 1].code ? " " + lines_[i + 1].text : "");
    for (std::sregex_iterator match(text.begin(), text.end(), inline_code), end; match != end; ++match) {
      if (match->position() >= static_cast<int64_t>(lines_[i].text.size())) break;
      add((*match)[1].str(), i);
    }
  }
  return commands;
}

}  // namespace winnow
