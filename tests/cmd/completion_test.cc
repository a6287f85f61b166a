// The scripts of `winnow completion`, run by the shells that they are for, and docs/options.md.
#include "cmd/command/completion.h"

#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cmd/winnow_process.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsSupersetOf;
using testing::Not;

std::string OutputOf(const std::vector<std::string>& arguments) {
  WinnowProcess process(arguments);
  EXPECT_EQ(process.Wait(), 0) << process.errors();
  return process.output();
}

// Lines that a shell command prints.
std::vector<std::string> Lines(const std::string& command) {
  std::vector<std::string> lines;
  std::FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  EXPECT_EQ(pclose(pipe), 0) << command;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool Installed(const std::string& shell) {
  return std::system(("command -v " + shell + " >/dev/null 2>&1").c_str()) == 0;
}

TEST(FirstSentence, EndsAtAFullStopAndABlank) {
  EXPECT_EQ(FirstSentence("Where it is: a.b. Or not."), "Where it is: a.b");
  EXPECT_EQ(FirstSentence("One."), "One");
  EXPECT_EQ(FirstSentence("One"), "One");
}

class BashCompletion : public testing::Test {
 protected:
  BashCompletion() : script_(folder_.Write("winnow.bash", OutputOf({"completion", "bash"}))) {
    folder_.Write("question.txt", "?");
  }

  // What bash offers for the last word; words as bash splits them.
  std::vector<std::string> Offered(const std::string& words) {
    const std::string command = "cd " + folder_.path() + " && bash -c 'set -f; source " + script_ +
                                "; COMP_WORDS=(winnow " + words +
                                "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _winnow; "
                                "((${#COMPREPLY[@]} == 0)) || printf \"%s\\n\" \"${COMPREPLY[@]}\"'";
    return Lines(command);
  }

  TempDir folder_;
  const std::string script_;
};

TEST_F(BashCompletion, Commands) {
  EXPECT_THAT(Offered("gen"), ElementsAre("generate"));
  EXPECT_THAT(Offered("\"\""), IsSupersetOf({"up", "chat", "bench", "completion", "version"}));
  EXPECT_THAT(Offered("\"\""), Not(Contains("demo"))) << "it is in no list";
  EXPECT_THAT(Offered("bench \"\""), ElementsAre("engine", "serve"));
  EXPECT_THAT(Offered("keys re"), ElementsAre("revoke"));
}

TEST_F(BashCompletion, OptionsOfTheCommand) {
  EXPECT_THAT(Offered("up --trans"), ElementsAre("--transport="));
  EXPECT_THAT(Offered("bench serve --conc"), ElementsAre("--concurrency="));
  EXPECT_THAT(Offered("generate --ra"), ElementsAre("--raw")) << "a boolean needs no value";
  EXPECT_THAT(Offered("up --model x --cache-ra"), ElementsAre("--cache-ranks="));
}

TEST_F(BashCompletion, ValuesOfOptions) {
  EXPECT_THAT(Offered("up --transport = \"\""), ElementsAre("auto", "inproc", "ucx", "p2p", "nccl"));
  EXPECT_THAT(Offered("up --transport ="), ElementsAre("auto", "inproc", "ucx", "p2p", "nccl"));
  EXPECT_THAT(Offered("up --transport = in"), ElementsAre("inproc"));
  EXPECT_THAT(Offered("up --transport in"), ElementsAre("inproc"));
  EXPECT_THAT(Offered("generate --file = quest"), ElementsAre("question.txt"));
  EXPECT_THAT(Offered("up --model = quest"), ElementsAre()) << "a folder is wanted";
}

TEST_F(BashCompletion, Operands) {
  EXPECT_THAT(Offered("config check quest"), ElementsAre("question.txt"));
  EXPECT_THAT(Offered("completion \"\""), ElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(Offered("deploy render sys"), ElementsAre("systemd"));
  EXPECT_THAT(Offered("deploy render systemd quest"), ElementsAre("question.txt"));
  EXPECT_THAT(Offered("selection explain que"), ElementsAre("quest"));
}

TEST(ZshCompletion, IsTakenByZsh) {
  if (!Installed("zsh")) GTEST_SKIP() << "no zsh here";
  const TempDir folder;
  const std::string script = folder.Write("winnow.zsh", OutputOf({"completion", "zsh"}));
  EXPECT_THAT(Lines("zsh -f -c 'autoload -Uz compinit; compinit -u -D; source " + script +
                    "; echo $_comps[winnow]; whence -w _winnow_bench_serve'"),
              ElementsAre("_winnow", "_winnow_bench_serve: function"));
}

TEST(FishCompletion, OffersCommandsOptionsAndValues) {
  if (!Installed("fish")) GTEST_SKIP() << "no fish here";
  const TempDir folder;
  const std::string script = folder.Write("winnow.fish", OutputOf({"completion", "fish"}));
  const auto offered = [&](const std::string& line) {
    return Lines("fish --no-config -c 'source " + script + "; complete -C \"" + line +
                 "\" | string replace -r \"\\t.*\" \"\"'");
  };
  EXPECT_THAT(offered("winnow gen"), ElementsAre("generate"));
  EXPECT_THAT(offered("winnow up --transpo"), ElementsAre("--transport"));
  EXPECT_THAT(offered("winnow up --transport=in"), ElementsAre("--transport=inproc"));
  EXPECT_THAT(offered("winnow bench s"), ElementsAre("serve"));
}

TEST(OptionsReference, TheDocumentSaysWhatHelpSays) {
  std::ifstream file(WINNOW_SOURCE_DIR "/docs/options.md");
  const std::string document(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(document, OutputOf({"help", "--markdown"})) << "`winnow help --markdown >docs/options.md` writes it anew";
}

}  // namespace
}  // namespace winnow
