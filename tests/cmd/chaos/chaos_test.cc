// `winnow chaos` on clusters of real processes: it passes where promises are kept, and fails where they are not, or
// where it did not do what it says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/cmd/up_cluster.h"
#include "tests/cmd/winnow_process.h"

namespace winnow {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

struct Outcome {
  int code;
  std::string output, errors;
};

Outcome Chaos(const std::vector<std::string>& options, const std::vector<std::string>& up_options) {
  std::vector<std::string> arguments = {"chaos", "--streams=8", "--prompt-tokens=100-400", "--answer-tokens=40-60"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), up_options.begin(), up_options.end());
  WinnowProcess process(arguments);
  Outcome outcome{.code = process.Wait(), .output = process.output(), .errors = process.errors()};
  return outcome;
}

Outcome ChaosOfItsOwn(const std::vector<std::string>& options) {
  return Chaos(options, {"--", "--model=deploy/models/demo", "--inference-ranks=2", "--cache-memory=256MiB",
                         "--budget=128", "--max-context=1024"});
}

TEST(Chaos, AnswersSurviveAKilledAndAStoppedProcess) {
  const Outcome outcome = ChaosOfItsOwn({"--faults=kill-inference,stop", "--trials=2", "--stop-for=1s"});
  EXPECT_EQ(outcome.code, 0) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr(" has registered as inference-"));
  EXPECT_THAT(outcome.output, HasSubstr("state T at "));
  EXPECT_THAT(outcome.output, HasSubstr("16 streams: 16 the same, 0 with other tokens, 0 told so, 0 broken, 0 lost"));
  EXPECT_THAT(outcome.output, HasSubstr("PASSED"));
}

TEST(Chaos, AnswersSurviveProcessesThatAreAskedToEnd) {
  const Outcome outcome = ChaosOfItsOwn({"--faults=end-inference,restart-inference", "--trials=2"});
  EXPECT_EQ(outcome.code, 0) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output,
              ContainsRegex("effect: ended by itself after .* has registered as inference-[01] after "));
  EXPECT_THAT(outcome.output,
              ContainsRegex("effect: drained of [0-9]+ requests, of which [0-9]+ moved, in .*; ended by "
                            "itself after .* has registered as inference-[01] after "));
  EXPECT_THAT(outcome.output, HasSubstr("16 streams: 16 the same, 0 with other tokens, 0 told so, 0 broken, 0 lost"));
}

TEST(Chaos, ProcessesThatAreNotAskedToEndFailTheRun) {
  const Outcome outcome = ChaosOfItsOwn({"--faults=end-inference,restart-cache", "--trials=2", "--control=no-fault"});
  EXPECT_EQ(outcome.code, 1) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output, ContainsRegex("FAILED: trial 1: no effect of end-inference: .* has not ended within "));
  EXPECT_THAT(outcome.output, ContainsRegex("FAILED: trial 2: no effect of restart-cache: .* has not ended within "));
}

TEST(Chaos, ARunWithoutFaultsFails) {
  const Outcome outcome =
      ChaosOfItsOwn({"--faults=kill-inference,stop", "--trials=2", "--stop-for=500ms", "--control=no-fault"});
  EXPECT_EQ(outcome.code, 1) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("FAILED: trial 1: no effect of kill-inference"));
  EXPECT_THAT(outcome.output, HasSubstr("FAILED: trial 2: no effect of stop: state T at 0 of "));
  EXPECT_THAT(outcome.output, Not(HasSubstr("PASSED")));
}

// Where the machine does not allow processes with networks or a disk of their own, the refusal is what is tested.
bool IsRefused(const Outcome& outcome) {
  if (outcome.code == 0 || outcome.errors.find("this needs root") == std::string::npos) return false;
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("cannot have mounts of its own"));
  return true;
}

std::vector<std::string> LinkFaults(const std::string& control) {
  return {"--faults=cut-cache,throttle", "--trials=2", "--fault-time=1s", "--link-rate=20Mbit", "--control=" + control};
}

TEST(Chaos, AnswersSurviveACutAndASlowLink) {
  const Outcome outcome = ChaosOfItsOwn(LinkFaults("none"));
  if (IsRefused(outcome)) GTEST_SKIP() << outcome.errors;
  EXPECT_EQ(outcome.code, 0) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output, ContainsRegex("cut off from inference-[01]: of [0-9]+ connections tried meanwhile 0 were "
                                            "answered \\(before: 1 of 1, "));
  // The cluster's own traffic takes its share of the 20.
  EXPECT_THAT(outcome.output, ContainsRegex("its link carried [12]?[0-9]\\.[0-9] Mbit/s \\(before: "));
  EXPECT_THAT(outcome.output, HasSubstr("16 streams: 16 the same, 0 with other tokens, 0 told so, 0 broken, 0 lost"));
}

TEST(Chaos, LinksThatAreNotStruckFailTheRun) {
  const Outcome outcome = ChaosOfItsOwn(LinkFaults("no-fault"));
  if (IsRefused(outcome)) GTEST_SKIP() << outcome.errors;
  EXPECT_EQ(outcome.code, 1) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("FAILED: trial 1: no effect of cut-cache: cut off from "));
  EXPECT_THAT(outcome.output, HasSubstr("FAILED: trial 2: no effect of throttle: its link carried "));
}

TEST(Chaos, AnswersSurviveAFullDisk) {
  // A kill beside it, so that there is something to be logged.
  const Outcome outcome = ChaosOfItsOwn({"--faults=full-disk,kill-inference", "--trials=1", "--at-once=2"});
  if (IsRefused(outcome)) GTEST_SKIP() << outcome.errors;
  EXPECT_EQ(outcome.code, 0) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output,
              HasSubstr(" looks nothing could be written (No space left on device); the logs grew by "));
  EXPECT_THAT(outcome.output, HasSubstr(" has registered as inference-"));
  EXPECT_THAT(outcome.output, HasSubstr("8 streams: 8 the same, 0 with other tokens, 0 told so, 0 broken, 0 lost"));
}

TEST(Chaos, ADiskThatIsNotFilledFailsTheRun) {
  const Outcome outcome =
      ChaosOfItsOwn({"--faults=full-disk", "--trials=1", "--fault-time=300ms", "--control=no-fault"});
  if (IsRefused(outcome)) GTEST_SKIP() << outcome.errors;
  EXPECT_EQ(outcome.code, 1) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output, ContainsRegex("FAILED: trial 1: no effect of full-disk: .* at 0 of [0-9]+ looks"));
}

TEST(Chaos, RequestsEndByTheirDeadlineInAPartition) {
  // How much throughput comes back a machine that does other things, too, cannot tell in so short a time.
  const Outcome outcome = ChaosOfItsOwn(
      {"--mode=heal", "--faults=isolate-cache", "--trials=1", "--fault-time=3s", "--window=1s", "--deadline=2s"});
  if (IsRefused(outcome)) GTEST_SKIP() << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("isolate-cache of cache-0"));
  EXPECT_THAT(outcome.output, ContainsRegex("tokens/s: [0-9.]+ before the fault \\(1\\.0 s\\), "));
  EXPECT_THAT(outcome.output, ContainsRegex("[1-9][0-9]* ended by their deadline, 0 more than a second behind it"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("FAILED: trial")));
}

// On a cluster that others have started.
class ChaosOfOthers : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(cluster_.ready()) << cluster_.line() << cluster_.process().errors(); }

  std::vector<std::string> Address() {
    const std::string all = cluster_.address("metrics");
    return {"--server=" + cluster_.address("http"), "--metrics=" + all.substr(0, all.find(','))};
  }

  UpCluster cluster_{{"--inference-ranks=2", "--prefix-cache=false", "--max-context=1024"}};
};

TEST_F(ChaosOfOthers, NothingIsDoneToItWithoutYes) {
  const std::vector<ProcessInfo> before = ChildrenOf(cluster_.process().pid());
  const Outcome outcome = Chaos({"--faults=kill-cache"}, Address());
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.errors, HasSubstr("--yes does it"));
  for (const ProcessInfo& process : before) {
    EXPECT_THAT(outcome.output + " ", HasSubstr("(pid " + std::to_string(process.pid) + ")"));
  }
  const std::vector<ProcessInfo> after = ChildrenOf(cluster_.process().pid());
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i].pid, before[i].pid);
}

TEST_F(ChaosOfOthers, AWrongTokenAndALostRequestAreFound) {
  std::vector<std::string> options = Address();
  options.insert(options.end(), {"--yes", "--faults=stop-inference", "--trials=1", "--stop-for=200ms"});
  options.push_back("--control=wrong-token");
  const Outcome wrong = Chaos(options, {});
  EXPECT_EQ(wrong.code, 1) << wrong.output << wrong.errors;
  EXPECT_THAT(wrong.output, HasSubstr("FAILED: trial 1: 1 other tokens\n"));
  options.back() = "--control=lost-request";
  const Outcome lost = Chaos(options, {});
  EXPECT_EQ(lost.code, 1) << lost.output << lost.errors;
  EXPECT_THAT(lost.output, HasSubstr("FAILED: trial 1: 1 lost\n"));
}

TEST_F(ChaosOfOthers, NothingIsLeftOfCancelledStreams) {
  std::vector<std::string> options = Address();
  options.insert(options.end(), {"--yes", "--mode=cancel", "--cancels=60"});
  const Outcome outcome = Chaos(options, {});
  EXPECT_EQ(outcome.code, 0) << outcome.output << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr(" streams cancelled in "));
  EXPECT_THAT(outcome.output, HasSubstr("everything back after "));
}

TEST_F(ChaosOfOthers, ItsLinksAndItsDiskAreLeftAlone) {
  for (const char* fault : {"cut", "full-disk"}) {
    std::vector<std::string> options = Address();
    options.insert(options.end(), {"--yes", absl::StrCat("--faults=", fault)});
    const Outcome outcome = Chaos(options, {});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.errors, HasSubstr(absl::StrCat("--faults=", fault, ": links and disks are struck only of a")));
  }
}

TEST_F(ChaosOfOthers, ItsRanksAreNotDrained) {
  std::vector<std::string> options = Address();
  options.insert(options.end(), {"--yes", "--faults=restart-inference"});
  const Outcome outcome = Chaos(options, {});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.errors, HasSubstr("ranks are drained only of a cluster that is started here"));
}

TEST(ChaosOptions, ThatDoNotFitTogetherAreRefused) {
  EXPECT_THAT(Chaos({}, {}).errors, HasSubstr("give options of `winnow up` behind --"));
  EXPECT_THAT(Chaos({"--server=127.0.0.1:8000"}, {}).errors, HasSubstr("--server and --metrics need each other"));
  EXPECT_THAT(ChaosOfItsOwn({"--faults=throttel"}).errors, HasSubstr("\"throttel\" is none of kill, "));
  EXPECT_THAT(ChaosOfItsOwn({"--link-rate=100"}).errors, HasSubstr("--link-rate: expected a rate from 1kbit on"));
  EXPECT_THAT(ChaosOfItsOwn({"--mode=heal", "--faults=kill"}).errors, HasSubstr("kill has no end behind which"));
  EXPECT_THAT(Chaos({"--faults=cut"}, {"--", "--model=deploy/models/demo", "--transport=inproc"}).errors,
              HasSubstr("there are no links between processes"));
  EXPECT_THAT(Chaos({"--faults=cut"}, {"--", "-f", "deploy/cpu.yaml"}).errors,
              HasSubstr("not from a manifest (--file)"));
  EXPECT_THAT(Chaos({"--server=127.0.0.1:1", "--metrics=127.0.0.1:1", "--yes"}, {}).errors,
              HasSubstr("no process of a cluster was found on this host"));
}

}  // namespace
}  // namespace winnow
