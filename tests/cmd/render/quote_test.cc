#include "cmd/render/quote.h"

#include "gtest/gtest.h"
#include "yaml-cpp/yaml.h"

namespace winnow {
namespace {

TEST(Quote, YamlReadsBackWhatWasQuoted) {
  for (const char* text : {"plain", "a \"b\" \\c", "x: [y", "# no comment", "two\nlines", ""}) {
    EXPECT_EQ(YAML::Load(YamlQuoted(text)).as<std::string>(), text);
  }
}

TEST(Quote, AShellTakesItAsOneWord) {
  EXPECT_EQ(ShellWord("--selection=winnow,budget=5"), "--selection=winnow,budget=5");
  EXPECT_EQ(ShellWord("--cors-origins=*"), "'--cors-origins=*'");
  EXPECT_EQ(ShellWord("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(ShellWord(""), "''");
}

}  // namespace
}  // namespace winnow
