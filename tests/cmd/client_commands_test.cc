// What a person does with a running cluster: one prompt, a chat in a terminal, a measurement that is cut short.
#include <signal.h>

#include <fstream>
#include <thread>

#include "cmd/up/http_probe.h"
#include "common/base/json.h"
#include "common/metrics/metrics_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cmd/pty_process.h"
#include "tests/cmd/up_cluster.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kFact[] = "The code of nerita is 271828.";
constexpr char kQuestion[] = "What is the code of nerita?";

class ClientCommands : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ = new UpCluster();
    ASSERT_TRUE(cluster_->ready()) << cluster_->line() << cluster_->process().errors();
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
  }

  static std::string Server() { return "--server=" + cluster_->address("grpc"); }

  // While it exists, no token is computed.
  class Standstill {
   public:
    Standstill() : pid_(cluster_->Child("inference-rank")) { kill(pid_, SIGSTOP); }
    ~Standstill() { kill(pid_, SIGCONT); }

   private:
    const pid_t pid_;
  };

  static UpCluster* cluster_;
  TempDir folder_;
};

UpCluster* ClientCommands::cluster_ = nullptr;

TEST_F(ClientCommands, GeneratePrintsTheAnswerAndNothingElse) {
  WinnowProcess plain(
      {"generate", Server(), "--temperature=0", "--max-tokens=24", std::string(kFact) + "\n\n" + kQuestion});
  EXPECT_EQ(plain.Wait(), 0) << plain.errors();
  EXPECT_THAT(plain.output(), HasSubstr("271828"));
  EXPECT_EQ(plain.errors(), "") << "no progress where stderr is no terminal";
  // The same prompt from a file and from stdin.
  const std::string file = folder_.Write("fact.txt", kFact);
  WinnowProcess parts({"generate", Server(), "--temperature=0", "--max-tokens=24", "--file=" + file, "-"},
                      {.input = kQuestion, .environment = {}});
  EXPECT_EQ(parts.Wait(), 0) << parts.errors();
  EXPECT_EQ(parts.output(), plain.output());
  WinnowProcess piped({"generate", "--temperature=0", "--max-tokens=24"},
                      {.input = std::string(kFact) + "\n\n" + kQuestion,
                       .environment = {"WINNOW_SERVER=" + cluster_->address("grpc")}});
  EXPECT_EQ(piped.Wait(), 0) << piped.errors();
  EXPECT_EQ(piped.output(), plain.output());
}

TEST_F(ClientCommands, GenerateAsJsonHasTheFigures) {
  const std::string prompt = std::string(kFact) + " " + kQuestion;
  WinnowProcess plain({"generate", Server(), "--temperature=0", "--max-tokens=24", "--system=Be brief.", prompt});
  WinnowProcess process(
      {"generate", Server(), "--temperature=0", "--max-tokens=24", "--system=Be brief.", "--json", prompt});
  EXPECT_EQ(plain.Wait(), 0);
  EXPECT_EQ(process.Wait(), 0) << process.errors();
  const auto json = nlohmann::json::parse(process.output());
  EXPECT_EQ(json["text"].get<std::string>() + "\n", plain.output());
  EXPECT_THAT(std::string(json["finish_reason"]), testing::AnyOf("stop", "length"));
  EXPECT_GT(json["usage"]["prompt_tokens"], 10);
  EXPECT_GT(json["usage"]["completion_tokens"], 0);
  EXPECT_GT(json["time_to_first_token_s"], 0);
  EXPECT_THAT(std::string(json["selection"]["specification"]), HasSubstr("budget=256"));
}

TEST_F(ClientCommands, AnInterruptedGenerateSaysSoByItsExitCode) {
  const Standstill standstill;
  WinnowProcess process({"generate", Server(), kQuestion});
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 130);
  EXPECT_EQ(process.output() + process.errors(), "");
}

// Keys are typed when a prompt is shown: before it the terminal's own settings hold, under which Ctrl-C and Ctrl-D are
// no keys.
TEST_F(ClientCommands, AChatRemembersWhatWasSaidPastedAndAttached) {
  const std::string saved = folder_.path() + "/chat.json", history = folder_.path() + "/state/history";
  const std::string file = folder_.Write("names.txt", "nerita is a snail.");
  PtyProcess chat({"chat", Server(), "--temperature=0", "--max-tokens=16", "--stats", "--history=" + history});
  ASSERT_TRUE(chat.Shows("> ")) << chat.shown();
  // A line that Ctrl-C drops, then a document of two lines that is pasted into a line.
  chat.Type("nonsense\003");
  ASSERT_TRUE(chat.Shows("> ")) << chat.shown();
  chat.Type(std::string("\033[200~") + kFact + "\rThe sea is blue: ö.\033[201~");
  ASSERT_TRUE(chat.Shows("[pasted text 1, ")) << chat.shown();
  chat.Type(std::string(" ") + kQuestion + "\r");
  ASSERT_TRUE(chat.Shows("first token after ")) << chat.shown();
  ASSERT_TRUE(chat.Shows("> ")) << chat.shown();
  chat.Type("/file " + file + "\r");
  ASSERT_TRUE(chat.Shows("goes before the next message")) << chat.shown();
  ASSERT_TRUE(chat.Shows("> ")) << chat.shown();
  chat.Type("Say it \\\ragain.\r");
  ASSERT_TRUE(chat.Shows("first token after ")) << chat.shown();
  ASSERT_TRUE(chat.Shows("> ")) << chat.shown();
  chat.Type("/save " + saved + "\r");
  ASSERT_TRUE(chat.Shows("4 messages are in")) << chat.shown();
  ASSERT_TRUE(chat.Shows("> ")) << chat.shown();
  chat.Type("/sav x\r");
  EXPECT_TRUE(chat.Shows("did you mean \"/save\"?")) << chat.shown();
  ASSERT_TRUE(chat.Shows("> ")) << chat.shown();
  chat.Type("\004");
  EXPECT_EQ(chat.Wait(), 0) << chat.shown();

  std::ifstream stream(saved);
  const auto messages = nlohmann::json::parse(stream)["messages"];
  EXPECT_EQ(messages[0]["content"], std::string(kFact) + "\nThe sea is blue: ö. " + kQuestion);
  EXPECT_THAT(std::string(messages[1]["content"]), HasSubstr("271828"));
  EXPECT_EQ(messages[2]["content"], "nerita is a snail.\n\nSay it \nagain.");
  EXPECT_EQ(messages[3]["role"], "assistant");

  // The next chat has the lines of this one at hand.
  PtyProcess next({"chat", Server(), "--history=" + history});
  ASSERT_TRUE(next.Shows("> "));
  next.Type("\033[A");
  EXPECT_TRUE(next.Shows("/sav x")) << next.shown();
  next.Type("\003");
  ASSERT_TRUE(next.Shows("> "));
  next.Type("/quit\r");
  EXPECT_EQ(next.Wait(), 0);
}

TEST_F(ClientCommands, CtrlCEndsAnAnswerAndNotTheChat) {
  PtyProcess chat({"chat", Server(), "--temperature=0", "--max-tokens=16", "--stats", "--history=off"});
  ASSERT_TRUE(chat.Shows("> "));
  {
    const Standstill standstill;
    chat.Type(std::string(kQuestion) + "\r");
    ASSERT_TRUE(chat.Shows("waiting for the first token")) << chat.shown();
    chat.Type("\003\003");
    ASSERT_TRUE(chat.Shows("(ended)")) << chat.shown();
    ASSERT_TRUE(chat.Shows("> ")) << chat.shown();
  }
  chat.Type(std::string(kFact) + " " + kQuestion + "\r");
  EXPECT_TRUE(chat.Shows("first token after ")) << chat.shown();
  ASSERT_TRUE(chat.Shows("> ")) << chat.shown();
  chat.Type("/quit\r");
  EXPECT_EQ(chat.Wait(), 0);
}

TEST_F(ClientCommands, AChatWithoutATerminalTakesEachLineForAMessage) {
  const std::string saved = folder_.path() + "/chat.json";
  WinnowProcess chat({"chat", Server(), "--temperature=0", "--max-tokens=16"},
                     {.input = std::string(kFact) + " " + kQuestion + "\n/save " + saved + "\n", .environment = {}});
  EXPECT_EQ(chat.Wait(), 0) << chat.errors();
  std::ifstream stream(saved);
  const auto messages = nlohmann::json::parse(stream)["messages"];
  EXPECT_EQ(messages[1]["content"].get<std::string>() + "\n", chat.output());
}

TEST_F(ClientCommands, AnInterruptedMeasurementSaysWhatItHas) {
  const std::string json = folder_.path() + "/run.json";
  for (const char* protocol : {"http", "grpc"}) {
    SCOPED_TRACE(protocol);
    const auto served = [] {
      const auto metrics = HttpGet(cluster_->address("http"), "/metrics", std::chrono::seconds(5));
      return metrics.ok() ? MetricsText(metrics->body).Value("winnow_requests_total") : 0;
    };
    const double before = served();
    WinnowProcess bench({"bench", "serve", std::string("--protocol=") + protocol,
                         "--server=" + cluster_->address(protocol), "--requests=100000", "--concurrency=2",
                         "--input=16", "--output=4", "--out=" + json});
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!(served() >= before + 4) && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    bench.Signal(SIGINT);
    EXPECT_EQ(bench.Wait(), 130) << bench.errors();
    EXPECT_THAT(bench.output(), AllOf(HasSubstr("interrupted: "), HasSubstr(" of 100000 requests were measured\n"),
                                      HasSubstr("time to first token"), HasSubstr(", 0 failed")));
    std::ifstream stream(json);
    const auto saved = nlohmann::json::parse(stream);
    EXPECT_EQ(saved["interrupted"], true);
    EXPECT_GE(saved["completed"], 1);
  }
}

TEST_F(ClientCommands, AMeasurementPrintsJson) {
  WinnowProcess bench({"bench", "serve", "--server=" + cluster_->address("http"), "--requests=2", "--input=16",
                       "--output=4", "--json"});
  EXPECT_EQ(bench.Wait(), 0) << bench.errors();
  const auto json = nlohmann::json::parse(bench.output());
  EXPECT_EQ(json["completed"], 2);
  EXPECT_EQ(json["interrupted"], false);
}

}  // namespace
}  // namespace winnow
