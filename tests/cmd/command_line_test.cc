// What a user sees of wrong command lines: one line that names the mistake, and an exit code.
#include <algorithm>

#include "common/config/listen_address.h"
#include "common/metrics/metrics_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cmd/winnow_process.h"

namespace winnow {
namespace {

using testing::HasSubstr;

struct Outcome {
  int code;
  std::string output;
  std::string errors;
};

Outcome RunWinnow(const std::vector<std::string>& arguments) {
  WinnowProcess process(arguments);
  const int code = process.Wait();
  return {code, process.output(), process.errors()};
}

void ExpectOneLine(const Outcome& outcome, int code, const std::string& piece) {
  EXPECT_EQ(outcome.code, code);
  EXPECT_EQ(outcome.output, "");
  EXPECT_THAT(outcome.errors, HasSubstr(piece));
  EXPECT_EQ(std::count(outcome.errors.begin(), outcome.errors.end(), '\n'), 1) << outcome.errors;
}

const char kModel[] = "deploy/models/demo";

TEST(CommandLine, MistakesAreNamedInOneLine) {
  ExpectOneLine(RunWinnow({"dance"}), 2, "unknown command \"dance\"");
  ExpectOneLine(RunWinnow({"up"}), 2, "--model DIR is required");
  ExpectOneLine(RunWinnow({"up", "--model=/no/such/folder"}), 2, "there is no folder /no/such/folder");
  ExpectOneLine(RunWinnow({"up", "--modle=x"}), 2, "unknown option \"modle\"; did you mean \"model\"?");
  ExpectOneLine(RunWinnow({"up", "--model", kModel, "--cache-ranks=0"}), 2,
                "option \"cache-ranks\": \"0\" is outside [1, 64]");
  ExpectOneLine(RunWinnow({"up", "--model", kModel, "--selection=psychic"}), 2, "unknown selection preset \"psychic\"");
  ExpectOneLine(RunWinnow({"up", "--model", kModel, "--http=nowhere"}), 2, "option \"http\": expected HOST:PORT");
  ExpectOneLine(RunWinnow({"up", "--model", kModel, "surplus"}), 2, "unexpected argument \"surplus\"");
  ExpectOneLine(RunWinnow({"cache-rank", "--config=/no/such/file"}), 2,
                "cannot read the configuration file /no/such/file");
  ExpectOneLine(RunWinnow({"generate"}), 2, "give one prompt");
}

TEST(CommandLine, ATakenPortStartsNothing) {
  const auto owner = MetricsServer::Start("127.0.0.1:0", std::make_shared<MetricsRegistry>());
  ASSERT_TRUE(owner.ok()) << owner.status();
  const std::string address = (*owner)->address();
  ExpectOneLine(RunWinnow({"up", "--model", kModel, "--http", address, "--grpc=127.0.0.1:0", "--metrics=127.0.0.1:0"}),
                1, "address " + address + " is in use");
}

TEST(CommandLine, HelpIsOnStdout) {
  for (const char* command : {"up", "router", "inference-rank", "cache-rank", "generate", "doctor", "demo"}) {
    const Outcome outcome = RunWinnow({command, "--help"});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.output, HasSubstr(std::string("usage: winnow ") + command));
    EXPECT_EQ(outcome.errors, "");
  }
  EXPECT_THAT(RunWinnow({"up", "--help"}).output, HasSubstr("--cache-ranks=INT   (default 1)"));
}

TEST(CommandLine, AClientWithoutAServerSaysSo) {
  const auto nobody = ReservedAddress::Reserve("127.0.0.1:0");
  ASSERT_TRUE(nobody.ok()) << nobody.status();
  const Outcome outcome = RunWinnow({"generate", "--grpc", nobody->address(), "hello"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("there is no server at " + nobody->address()));
}

TEST(CommandLine, TheDoctorFindsThisMachineFit) {
  const Outcome outcome = RunWinnow({"doctor"});
  EXPECT_EQ(outcome.code, 0);
  for (const char* subject : {"cores", "memory", "kernels", "/dev/shm", "ucx", "open files", "gpu"}) {
    EXPECT_THAT(outcome.output, HasSubstr(subject));
  }
}

}  // namespace
}  // namespace winnow
