// `winnow bench serve` as a program: every kind of workload against a running cluster, what it saves, and its refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"
#include "tests/support/temp_dir.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

struct Ran {
  int code = -1;
  std::string output, errors;
};

Ran BenchServe(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {WinnowBinary(), "bench", "serve"});
  Process process(arguments, {});
  Ran ran;
  while (const std::optional<std::string> line = process.ReadLine(milliseconds(120'000))) ran.output += *line + "\n";
  ran.code = process.Wait(milliseconds(10'000)).value_or(-1);
  ran.errors = process.Log();
  return ran;
}

std::string ReadFile(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Plain {
  static Cluster::Options Options() { return {.flags = {"--budget=256", "--max-context=4096"}}; }
};

class BenchServeTest : public SharedCluster<Plain> {
 protected:
  // Runs a workload by both protocols and hands over what each has saved.
  void Measure(std::vector<std::string> workload, const std::function<void(const Json&)>& check) {
    for (const char* protocol : {"http", "grpc"}) {
      SCOPED_TRACE(protocol);
      const bool http = std::string_view(protocol) == "http";
      const std::string json = Path("figures.json"), plot = Path("figures.svg");
      std::vector<std::string> arguments = workload;
      arguments.insert(arguments.end(),
                       {std::string("--protocol=") + protocol,
                        "--server=" + (http ? cluster_->http_address() : cluster_->grpc_address()), "--out=" + json,
                        "--plot=" + plot, std::string("--api-key=secret-") + protocol});  // a tenant of its own
      const Ran ran = BenchServe(arguments);
      ASSERT_EQ(ran.code, 0) << ran.errors << ran.output;
      for (const char* figure : {"time to first token", "time per output token", "inter-token latency", "end to end",
                                 "requests/s", "output tokens/s", "good requests/s", "p50", "p90", "p99"}) {
        EXPECT_THAT(ran.output, HasSubstr(figure));
      }
      const Json saved = Json::parse(ReadFile(json));
      EXPECT_EQ(saved.at("failed"), 0) << saved;
      EXPECT_EQ(saved.at("options").at("protocol"), protocol);
      EXPECT_FALSE(saved.at("options").contains("api-key"));
      for (const char* times : {"ttft_seconds", "tpot_seconds", "itl_seconds", "end_to_end_seconds"}) {
        for (const char* figure : {"mean", "p50", "p90", "p99"}) {
          EXPECT_GT(saved.at(times).at(figure).get<double>(), 0) << times;
        }
      }
      const std::string svg = ReadFile(plot);
      EXPECT_THAT(svg, AllOf(HasSubstr("<svg"), HasSubstr("</svg>"), HasSubstr("time per output token")));
      EXPECT_THAT(svg, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
      check(saved);
    }
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  TempDir folder_;
};

TEST_F(BenchServeTest, AClosedLoopOfMixedLengthsWithSharedPrefixes) {
  Measure({"--requests=12", "--concurrency=3", "--input=200:1,300-400:2", "--output=4-8", "--prefixes=2",
           "--shared=0.6", "--ttft-target=60000", "--seed=" + std::to_string(std::random_device()())},
          [](const Json& saved) {
            EXPECT_EQ(saved.at("completed"), 12);
            EXPECT_GT(saved.at("cached_prompt_tokens").get<int>(), 0);
            EXPECT_EQ(saved.at("good_requests_per_second"), saved.at("requests_per_second"));
            for (const Json& request : saved.at("requests")) {
              const int prompt = request.at("prompt_tokens").get<int>(),
                        output = request.at("output_tokens").get<int>();
              EXPECT_TRUE(prompt == 200 || (prompt >= 300 && prompt <= 400)) << prompt;
              EXPECT_TRUE(output >= 4 && output <= 8) << output;
            }
          });
}

TEST_F(BenchServeTest, PoissonArrivals) {
  Measure({"--requests=10", "--rate=20", "--input=100", "--output=4", "--e2e-target=60000"}, [](const Json& saved) {
    double due = 0;
    for (const Json& request : saved.at("requests")) {
      EXPECT_GE(request.at("due_seconds").get<double>(), due);
      EXPECT_GE(request.at("sent_seconds").get<double>(), request.at("due_seconds").get<double>());
      due = request.at("due_seconds").get<double>();
    }
    EXPECT_GT(due, 0);
  });
}

TEST_F(BenchServeTest, ATraceInMooncakesFormat) {
  const std::string trace = folder_.Write(
      "trace.jsonl", R"({"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [46, 47, 48]})"
                     "\n"
                     R"({"timestamp": 3000, "input_length": 1200, "output_length": 6, "hash_ids": [46, 47, 49]})"
                     "\n"
                     R"({"timestamp": 6000, "input_length": 700, "output_length": 7})"
                     "\n");
  Measure({"--trace=" + trace, "--speed=2", "--tpot-target=60000"}, [](const Json& saved) {
    const Json& requests = saved.at("requests");
    ASSERT_EQ(requests.size(), 3u);
    EXPECT_EQ(requests[1].at("due_seconds"), 1.5);
    EXPECT_EQ(requests[1].at("prompt_tokens"), 1200);
    EXPECT_EQ(requests[1].at("cached_prompt_tokens"), 1024) << "two blocks of 512 tokens";
    EXPECT_EQ(requests[2].at("output_tokens"), 7);
  });
}

TEST_F(BenchServeTest, SaysWhyRequestsFailed) {
  const Ran some = BenchServe(
      {"--server=" + cluster_->http_address(), "--requests=6", "--input=100:1,8000:1", "--output=2", "--seed=3"});
  EXPECT_EQ(some.code, 0) << some.errors;
  EXPECT_THAT(some.output, AllOf(HasSubstr("failed "), HasSubstr("4096")));
  const Ran all = BenchServe({"--server=" + cluster_->http_address(), "--requests=2", "--input=8000", "--output=2"});
  EXPECT_EQ(all.code, 1);
  EXPECT_THAT(all.errors, AllOf(HasSubstr("no request was answered"), HasSubstr("4096")));
}

TEST(BenchServeCommandLine, RefusalsNameTheOptionOrTheLine) {
  TempDir folder;
  const auto refusal = [](std::vector<std::string> arguments) {
    const Ran ran = BenchServe(std::move(arguments));
    EXPECT_NE(ran.code, 0) << ran.output;
    return ran.errors;
  };
  const std::string trace = folder.Write("trace.jsonl",
                                         "{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 1}\n"
                                         "{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 0}\n");
  EXPECT_THAT(refusal({"--trace=" + trace}), AllOf(HasSubstr("trace.jsonl:2"), HasSubstr("\"output_length\" is 0")));
  EXPECT_THAT(refusal({"--trace=/nowhere"}), HasSubstr("/nowhere"));
  EXPECT_THAT(refusal({"--trace=" + trace, "--rate=3"}), HasSubstr("--trace and --rate exclude each other"));
  EXPECT_THAT(refusal({"--speed=2"}), HasSubstr("--speed needs --trace"));
  EXPECT_THAT(refusal({"--input=12x"}), AllOf(HasSubstr("--input"), HasSubstr("12x")));
  EXPECT_THAT(refusal({"--output=9-3"}), AllOf(HasSubstr("--output"), HasSubstr("9-3")));
  EXPECT_THAT(refusal({"--shared=1.5"}), AllOf(HasSubstr("shared"), HasSubstr("[0, 1]")));
  EXPECT_THAT(refusal({"--rate=-1"}), AllOf(HasSubstr("rate"), HasSubstr("[0, 1")));
  EXPECT_THAT(refusal({"--out=/nowhere/a.json"}), HasSubstr("--out: cannot write /nowhere/a.json"));
  EXPECT_THAT(refusal({"--plot=/nowhere/a.svg"}), HasSubstr("--plot: cannot write /nowhere/a.svg"));
}

}  // namespace
}  // namespace winnow::e2e
