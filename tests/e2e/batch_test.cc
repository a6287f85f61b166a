// `winnow batch` against running clusters: every line is answered once, whatever happens in between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <map>
#include <optional>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_certificates.h"

namespace winnow::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Pair;

constexpr std::chrono::seconds kLong{60};

struct BatchServer {
  static Cluster::Options Options() { return {.flags = {"--budget=256", "--max-context=4096"}}; }
};

struct Outcome {
  int code;
  std::string output;
  std::string errors;
};

class Batch : public SharedCluster<BatchServer> {
 protected:
  // `count` completions of `tokens` tokens, named "0", "1", ...
  void WriteRequests(int count, int tokens) {
    std::ofstream file(in_);
    for (int i = 0; i < count; ++i) file << Line(std::to_string(i), BodyOf(i, tokens)).dump() << "\n";
  }
  static Json BodyOf(int i, int tokens) {
    return {
        {"prompt", "Number " + std::to_string(i)}, {"max_tokens", tokens}, {"temperature", 0}, {"ignore_eos", true}};
  }
  static Json Line(const std::string& id, const Json& body) {
    return {{"custom_id", id}, {"method", "POST"}, {"url", "/v1/completions"}, {"body", body}};
  }

  std::unique_ptr<Process> StartBatch(std::vector<std::string> flags) const {
    std::vector<std::string> arguments = {WinnowBinary(), "batch", in_, "--out=" + out_};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return std::make_unique<Process>(arguments, Process::Environment());
  }
  static std::string ToCluster() { return "--server=" + cluster_->http_address(); }
  static Outcome EndOf(Process& process) {
    Outcome outcome{process.Wait(kLong).value_or(-1), "", process.Log()};
    while (const auto line = process.ReadLine(std::chrono::seconds(1))) outcome.output += *line + "\n";
    return outcome;
  }
  Outcome Run(std::vector<std::string> flags) const { return EndOf(*StartBatch(std::move(flags))); }

  // The lines of the output by custom_id; a line that comes twice fails the test.
  std::map<std::string, Json> Answers() const {
    std::map<std::string, Json> answers;
    std::ifstream file(out_);
    for (std::string text; std::getline(file, text);) {
      Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
      EXPECT_TRUE(line.is_object()) << text;
      if (!line.is_object()) continue;
      const std::string id = line["custom_id"];
      EXPECT_TRUE(answers.emplace(id, std::move(line)).second) << id << " comes twice";
    }
    return answers;
  }
  size_t LinesWritten() const {
    std::ifstream file(out_);
    size_t lines = 0;
    for (std::string text; std::getline(file, text);) lines += !file.eof();
    return lines;
  }

  const TempDir folder_;
  const std::string in_ = folder_.path() + "/in.jsonl", out_ = folder_.path() + "/out.jsonl";
};

TEST_F(Batch, AnswersWhatTheServerAnswers) {
  constexpr int kCount = 12;
  WriteRequests(kCount, 8);
  const Outcome outcome = Run({ToCluster(), "--concurrency=4"});
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_EQ(outcome.errors, "") << "no progress where there is no terminal";
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("12 requests: 12 answered, 0 failed"), HasSubstr("96 completion tokens")));
  const std::map<std::string, Json> answers = Answers();
  ASSERT_EQ(answers.size(), static_cast<size_t>(kCount));
  for (int i = 0; i < kCount; ++i) {
    const Json& response = answers.at(std::to_string(i))["response"];
    EXPECT_EQ(response["status_code"], 200);
    const HttpReply direct = cluster_->http().Post("/v1/completions", BodyOf(i, 8));
    EXPECT_EQ(response["body"]["choices"], direct.json()["choices"]);
  }
}

TEST_F(Batch, TellsProgramsAndPeople) {
  WriteRequests(4, 4);
  const Json summary = Json::parse(Run({ToCluster(), "--json"}).output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(summary.is_object());
  EXPECT_EQ(summary["answered"], 4);
  EXPECT_EQ(summary["completion_tokens"], 16);
  EXPECT_EQ(summary["failures"], Json::object());

  WriteRequests(12, 100);
  Process on_terminal(
      {"/usr/bin/script", "-qec",
       WinnowBinary() + " batch " + in_ + " --out=" + out_ + " --concurrency=2 " + ToCluster(), "/dev/null"},
      {});
  const Outcome outcome = EndOf(on_terminal);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("  4 of 12 requests"), HasSubstr("12 requests: 8 answered, 4 answered before")));
}

TEST_F(Batch, LinesThatFailAreToldAndSentAgainAlone) {
  std::ofstream(in_) << Line("good", BodyOf(1, 4)).dump() << "\n"
                     << Line("hot", {{"prompt", "x"}, {"temperature", 9}}).dump() << "\n";
  const Outcome first = Run({ToCluster()});
  EXPECT_EQ(first.code, 1);
  EXPECT_THAT(first.output, AllOf(HasSubstr("1 answered, 1 failed"), HasSubstr("line 2 (hot): 400: \"temperature\"")));
  const std::map<std::string, Json> before = Answers();
  EXPECT_EQ(before.at("hot")["response"]["status_code"], 400);

  std::ofstream(in_) << Line("good", BodyOf(1, 4)).dump() << "\n" << Line("hot", BodyOf(2, 4)).dump() << "\n";
  const Outcome second = Run({ToCluster()});
  EXPECT_EQ(second.code, 0);
  EXPECT_THAT(second.output, HasSubstr("1 answered, 1 answered before, 0 failed"));
  const std::map<std::string, Json> after = Answers();
  EXPECT_EQ(after.at("good"), before.at("good"));
  EXPECT_EQ(after.at("hot")["response"]["status_code"], 200);
}

TEST_F(Batch, GoesOnAfterAKill) {
  constexpr int kCount = 40;
  WriteRequests(kCount, 60);
  const std::unique_ptr<Process> killed = StartBatch({ToCluster(), "--concurrency=2"});
  ASSERT_TRUE(WaitUntil(kLong, [&] { return LinesWritten() >= 3; }));
  killed->Signal(SIGKILL);
  EXPECT_EQ(killed->Wait(kLong), 128 + SIGKILL);
  const size_t before = LinesWritten();
  ASSERT_LT(before, static_cast<size_t>(kCount)) << "it was done before it could be killed";

  const Outcome outcome = Run({ToCluster()});
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat(before, " answered before")));
  const std::map<std::string, Json> answers = Answers();
  EXPECT_EQ(answers.size(), static_cast<size_t>(kCount));
  for (const auto& [id, line] : answers) EXPECT_EQ(line["response"]["status_code"], 200) << id;
}

TEST_F(Batch, CtrlCKeepsTheAnswersUnderWay) {
  WriteRequests(60, 100);
  const std::unique_ptr<Process> process = StartBatch({ToCluster(), "--concurrency=3"});
  ASSERT_TRUE(WaitUntil(kLong, [&] { return LinesWritten() >= 2; }));
  process->Signal(SIGINT);
  const Outcome outcome = EndOf(*process);
  EXPECT_EQ(outcome.code, 130);
  EXPECT_THAT(outcome.errors, HasSubstr("Ctrl-C again drops them"));
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("0 failed"), HasSubstr("not sent or not answered")));
  const std::map<std::string, Json> answers = Answers();
  EXPECT_GE(answers.size(), 3u);
  EXPECT_LT(answers.size(), 60u);
  for (const auto& [id, line] : answers) EXPECT_EQ(line["response"]["status_code"], 200) << id;
}

TEST_F(Batch, MistakesAreNamedBeforeAnythingIsSent) {
  WriteRequests(1, 4);
  std::ofstream(in_, std::ios::app) << "nonsense\n";
  Outcome outcome = Run({ToCluster()});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.errors, "winnow batch: " + in_ + ":2: no JSON object\n");
  EXPECT_EQ(LinesWritten(), 0u);
  WriteRequests(1, 4);
  outcome = Run({"--model=/no/such/folder"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("there is no folder /no/such/folder"));
}

TEST_F(Batch, AServerThatIsNotThereIsAskedAgainAndThenTold) {
  WriteRequests(1, 4);
  const Outcome outcome = Run({"--server=127.0.0.1:1", "--retries=1"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("1 failed"), HasSubstr("no answer: Connection refused")));
  EXPECT_EQ(Answers().at("0")["error"]["code"], "no_answer");
}

TEST_F(Batch, StartsAServerOfItsOwn) {
  WriteRequests(3, 4);
  const Outcome outcome = Run({"--model=" + DemoModel()});
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("3 answered"));
  EXPECT_EQ(Answers().size(), 3u);
}

TEST(SecuredBatch, GoesWithTlsAndAKey) {
  const TempDir folder;
  const TestAuthority authority(folder.path() + "/ours"), strangers(folder.path() + "/strangers");
  authority.Issue("http", "DNS:localhost,IP:127.0.0.1");
  const std::string keys = folder.path() + "/keys.yaml", in = folder.path() + "/in.jsonl";
  Process adding({WinnowBinary(), "keys", "add", keys, "--name=batch"}, {});
  const std::string key = adding.ReadLine(kLong).value_or("");
  ASSERT_EQ(adding.Wait(kLong), 0);
  const auto cluster = StartOrFail({"--budget=256", "--max-context=4096", "--api-keys=" + keys,
                                    "--http-tls-cert=" + folder.path() + "/ours/http.crt",
                                    "--http-tls-key=" + folder.path() + "/ours/http.key"});
  ASSERT_NE(cluster, nullptr);
  std::ofstream(in) << R"({"custom_id": "a", "method": "POST", "url": "/v1/completions",)"
                    << R"( "body": {"prompt": "hello", "max_tokens": 4}})"
                    << "\n";
  const auto run = [&](const std::string& ca, const Process::Environment& environment) {
    Process process({WinnowBinary(), "batch", in, "--out=" + in + ".out", "--server=" + cluster->http_address(),
                     "--retries=0", "--tls-ca=" + folder.path() + ca},
                    environment);
    const std::optional<int> code = process.Wait(kLong);
    std::string output;
    while (const auto line = process.ReadLine(std::chrono::seconds(1))) output += *line + "\n";
    return std::pair(code, output);
  };
  EXPECT_THAT(run("/ours/ca.crt", {}), Pair(1, HasSubstr("401")));
  EXPECT_THAT(run("/strangers/ca.crt", {{"WINNOW_API_KEY", key}}), Pair(1, HasSubstr("certificate verify failed")));
  EXPECT_THAT(run("/ours/ca.crt", {{"WINNOW_API_KEY", key}}), Pair(0, HasSubstr("1 answered, 0 failed")));
}

}  // namespace
}  // namespace winnow::e2e
