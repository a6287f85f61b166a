// How `winnow up` ends when it is told to: who is answered what, and what is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include "tests/e2e/generation_calls.h"
#include "tests/e2e/golden.h"
#include "tests/support/temp_dir.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

constexpr milliseconds kLong{60'000};
// More than is done before the test is over.
constexpr int kEndless = 30'000;

// A stream of a completion on a thread of its own.
class Stream {
 public:
  Stream(const HttpClient& client, int max_tokens)
      : completion_(std::async(std::launch::async, [this, client, max_tokens] {
          return StreamCompletion(client, GreedyRequest(DemoText(64), max_tokens), [this](size_t) {
            begun_ = true;
            return true;
          });
        })) {}
  bool WaitUntilBegun() {
    return WaitUntil(kLong, [this] { return begun_.load(); });
  }
  Completion End() { return completion_.get(); }

 private:
  std::atomic<bool> begun_{false};
  std::future<Completion> completion_;
};

Json ErrorOf(const Completion& completion) {
  const Json body = Json::parse(completion.error, nullptr, /*allow_exceptions=*/false);
  return body.is_object() && body.contains("error") ? body["error"] : Json::object();
}

void ExpectStopping(const Completion& completion) {
  EXPECT_EQ(ErrorOf(completion).value("message", ""), "the router is stopping") << completion.error;
  EXPECT_EQ(ErrorOf(completion).value("type", ""), "service_unavailable_error");
}

// Files in memory that these processes share with names, which outlive whoever does not remove them.
std::set<std::string> SharedFiles(const std::vector<pid_t>& pids) {
  std::set<std::string> files;
  for (const pid_t pid : pids) {
    std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
    for (std::string line; std::getline(maps, line);) {
      const size_t path = line.find("/dev/shm/");
      if (path != std::string::npos) files.insert(line.substr(path));
    }
  }
  return files;
}

TEST(Stop, AnswersThatAreNotDoneInTheGracePeriodEndWithTheDocumentedError) {
  const std::unique_ptr<Cluster> cluster = StartOrFail({"--stop-grace=100ms", "--budget=256"});
  ASSERT_NE(cluster, nullptr);
  Stream stream(cluster->http(), kEndless);
  std::future<Completion> whole = std::async(std::launch::async, [client = cluster->http()] {
    return Complete(client, GreedyRequest(DemoText(64), kEndless));
  });
  v1::GenerateRequest request = SamplesOf("", DemoText(64), 2, kEndless);
  GenerationClient client(*cluster);
  const std::unique_ptr<Call> call = client.Generate(request);
  ASSERT_TRUE(call->ReadUntil(1));
  ASSERT_TRUE(stream.WaitUntilBegun());
  ASSERT_TRUE(
      WaitUntil(kLong, [&] { return cluster->MetricsOf("router-0").Value("winnow_num_requests_running") == 4; }));
  const std::vector<pid_t> pids = cluster->AllPids();
  const std::set<std::string> shared_files = SharedFiles(pids);

  const absl::Status stopped = cluster->Stop();
  EXPECT_TRUE(stopped.ok()) << stopped.message();

  const Completion streamed = stream.End();
  EXPECT_EQ(streamed.status, 200) << "the stream did not end in good order: " << streamed.error;
  ExpectStopping(streamed);
  const Completion answer = whole.get();
  EXPECT_EQ(answer.status, 503);
  ExpectStopping(answer);
  EXPECT_EQ(call->Finish().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(call->Finish().status.error_message(), "the router is stopping");

  EXPECT_THAT(cluster->process().Log(), Not(HasSubstr("killing")));
  for (const pid_t pid : pids) EXPECT_FALSE(IsAlive(pid));
  for (const std::string& file : shared_files) EXPECT_FALSE(std::filesystem::exists(file)) << file;
}

TEST(Stop, AnswersThatAreDoneInTheGracePeriodAreWhole) {
  const std::unique_ptr<Cluster> cluster = StartOrFail({"--stop-grace=60s", "--budget=256"});
  ASSERT_NE(cluster, nullptr);
  Stream stream(cluster->http(), 400);
  ASSERT_TRUE(stream.WaitUntilBegun());
  cluster->process().Signal(SIGTERM);
  const Completion completion = stream.End();
  EXPECT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(completion.ids.size(), 400u);
  EXPECT_EQ(cluster->process().Wait(kLong), 0) << cluster->process().Log();
}

TEST(Stop, NewRequestsAreRefusedMeanwhileAndASecondSignalHurries) {
  const std::unique_ptr<Cluster> cluster = StartOrFail({"--stop-grace=1h", "--budget=256"});
  ASSERT_NE(cluster, nullptr);
  Stream stream(cluster->http(), kEndless);
  ASSERT_TRUE(stream.WaitUntilBegun());
  cluster->process().Signal(SIGTERM);
  EXPECT_TRUE(WaitUntil(kLong, [&] { return cluster->http().Get("/ready").status == 503; }));
  const Completion late = Complete(cluster->http(), GreedyRequest(DemoText(64), 1));
  EXPECT_EQ(late.status, 503);
  ExpectStopping(late);

  cluster->process().Signal(SIGTERM);
  EXPECT_EQ(cluster->process().Wait(kLong), 0) << cluster->process().Log();
  const Completion streamed = stream.End();
  EXPECT_EQ(streamed.status, 200) << "the stream did not end in good order: " << streamed.error;
  ExpectStopping(streamed);
  EXPECT_THAT(cluster->process().Log(), Not(HasSubstr("killing")));
}

// A router that is told to end by itself does as it does under `winnow up`; the ranks live on.
TEST(Stop, ARouterAloneEndsItsAnswersWithTheDocumentedError) {
  const std::unique_ptr<Cluster> cluster = StartOrFail({"--stop-grace=100ms", "--budget=256"});
  ASSERT_NE(cluster, nullptr);
  Stream stream(cluster->http(), kEndless);
  ASSERT_TRUE(stream.WaitUntilBegun());
  kill(cluster->Pids("router").at(0), SIGTERM);
  ExpectStopping(stream.End());
}

TEST(Stop, HeedsASignalWhileItStarts) {
  // Reading the keys takes as long as nobody writes to the pipe.
  const TempDir folder;
  const std::string pipe = folder.path() + "/keys";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const auto run = [&](const char* command) -> std::vector<std::string> {
    return {WinnowBinary(),           command,
            "--model=" + DemoModel(), "--api-keys=" + pipe,
            "--http=127.0.0.1:0",     "--grpc=127.0.0.1:0",
            "--metrics=127.0.0.1:0"};
  };
  const auto starts = [](const Process& process) {
    return WaitUntil(kLong, [&] { return process.Log().find(" starts as ") != std::string::npos; });
  };
  Process router(run("router"), {});
  ASSERT_TRUE(starts(router)) << router.Log();
  router.Signal(SIGTERM);
  EXPECT_EQ(router.Wait(milliseconds(10'000)), 128 + SIGTERM) << router.Log();

  Process up(run("up"), {});
  ASSERT_TRUE(starts(up)) << up.Log();
  up.Signal(SIGINT);
  EXPECT_EQ(up.Wait(kLong), 0) << up.Log();
  EXPECT_THAT(up.Log(), Not(HasSubstr("killing")));
}

}  // namespace
}  // namespace winnow::e2e
