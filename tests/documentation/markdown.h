#pragma once
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace winnow {

// A page of the repository, as far as its tests look at it.
struct MarkdownLink {
  std::string target;  // as written, without a title
  int line = 0;
};

// A command line in a page: a line of a block of code or text between backquotes that begins with a program of ours.
struct MarkdownCommand {
  std::string text;
  int line = 0;
};

class MarkdownPage {
 public:
  // `path` is relative to the repository.
  explicit MarkdownPage(const std::string& path);

  const std::string& path() const { return path_; }
  // Of [text](target) and ![text](target); what stands in code is none.
  std::vector<MarkdownLink> Links() const;
  // Names by which headings can be linked to, as GitHub makes them.
  std::set<std::string> Anchors() const;
  // Of blocks of code, fenced or indented, joined where a line ends with a backslash, and of text between backquotes.
  std::vector<MarkdownCommand> Commands() const;

 private:
  struct Line {
    std::string text;
    bool code = false;
  };

  const std::string path_;
  std::vector<Line> lines_;
};

// README.md and everything under docs/, relative to the repository.
std::vector<std::string> MarkdownPaths();
// The contents of a file of the repository.
std::string ReadSource(const std::string& relative);

}  // namespace winnow
