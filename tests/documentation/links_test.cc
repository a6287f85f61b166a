// Every link between the pages leads somewhere.
#include <gtest/gtest.h>

#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "tests/documentation/markdown.h"

namespace winnow {
namespace {

TEST(DocumentationLinks, LeadToFilesAndHeadingsThatThereAre) {
  const std::filesystem::path root = WINNOW_SOURCE_DIR;
  int links = 0;
  for (const std::string& path : MarkdownPaths()) {
    for (const MarkdownLink& link : MarkdownPage(path).Links()) {
      if (absl::StrContains(link.target, "://")) continue;
      SCOPED_TRACE(path + ":" + std::to_string(link.line) + " " + link.target);
      ++links;
      const std::vector<std::string> parts = absl::StrSplit(link.target, absl::MaxSplits('#', 1));
      const std::filesystem::path target =
          parts[0].empty() ? std::filesystem::path(path)
                           : (std::filesystem::path(path).parent_path() / parts[0]).lexically_normal();
      EXPECT_TRUE(std::filesystem::exists(root / target)) << target;
      if (parts.size() == 1 || !std::filesystem::exists(root / target)) continue;
      EXPECT_TRUE(MarkdownPage(target.string()).Anchors().contains(parts[1])) << "no such heading";
    }
  }
  EXPECT_GT(links, 60);
}

TEST(DocumentationLinks, SourceFilesThatAreNamedAreThere) {
  const std::filesystem::path root = WINNOW_SOURCE_DIR;
  const std::regex file(
      R"(`((?:cache_rank|cmd|common|deploy|inference_rank|kernels|model|router|tests|tools|transport)/[\w/.-]+\.\w+)`)");
  int files = 0;
  for (const std::string& path : MarkdownPaths()) {
    const std::string text = ReadSource(path);
    for (std::sregex_iterator match(text.begin(), text.end(), file), end; match != end; ++match, ++files) {
      EXPECT_TRUE(std::filesystem::exists(root / (*match)[1].str())) << path << " names " << (*match)[1];
    }
  }
  EXPECT_GT(files, 80);
}

TEST(DocumentationLinks, EveryPageIsLinkedFromTheReadme) {
  std::set<std::string> linked = {"README.md"};
  for (const MarkdownLink& link : MarkdownPage("README.md").Links()) {
    linked.insert(std::string(link.target.substr(0, link.target.find('#'))));
  }
  for (const std::string& path : MarkdownPaths()) EXPECT_TRUE(linked.contains(path)) << path;
}

TEST(DocumentationLinks, AnchorsAreThoseThatReadersOfMarkdownMake) {
  // Of this repository's headings: capitals, quotes, commas, and one that comes twice.
  EXPECT_TRUE(MarkdownPage("docs/selection.md").Anchors().contains("a-models-own-indexer"));
  EXPECT_TRUE(MarkdownPage("docs/operations.md").Anchors().contains("options-of-winnow-up"));
}

}  // namespace
}  // namespace winnow
