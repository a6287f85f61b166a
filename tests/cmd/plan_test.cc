// `winnow plan` of a manifest beside what its processes do.
#include <fstream>
#include <sstream>

#include "cmd/up/http_probe.h"
#include "common/base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cmd/winnow_process.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

using testing::HasSubstr;

std::string Manifest(const std::string& inference, const std::string& cache) {
  return "model:\n  path: deploy/models/demo\nrouter:\n  http: 127.0.0.1:0\n  grpc: 127.0.0.1:0\ninference:\n  device: "
         "cpu\n" +
         inference + "cache:\n" + cache + "selection:\n  budget: 256\nobservability:\n  metrics: 127.0.0.1:0\n";
}

class Plan : public testing::Test {
 protected:
  std::string Write(const std::string& text) {
    const std::string path = dir_.path() + "/manifest.yaml";
    std::ofstream(path) << text;
    return path;
  }
  // The sum of a metric's samples in all processes of a cluster.
  static double Sum(const std::string& addresses, const std::string& name) {
    double sum = 0;
    std::istringstream list(addresses);
    for (std::string address; std::getline(list, address, ',');) {
      const auto answer = HttpGet(address, "/metrics", std::chrono::seconds(5));
      if (!answer.ok()) continue;
      std::istringstream lines(answer->body);
      for (std::string line; std::getline(lines, line);) {
        if (line.rfind(name + "{", 0) == 0 || line.rfind(name + " ", 0) == 0) {
          sum += std::stod(line.substr(line.rfind(' ')));
        }
      }
    }
    return sum;
  }

  TempDir dir_;
};

TEST_F(Plan, OfAManifestIsWhatItsProcessesHave) {
  const std::string path =
      Write(Manifest("  max_running: 8\n  slot_memory: 96MiB\n  prefill_memory: 64MiB\n", "  memory: 256MiB\n"));
  WinnowProcess plan({"plan", "-f", path, "--context=4000", "--json"});
  ASSERT_EQ(plan.Wait(), 0) << plan.errors();
  const auto json = nlohmann::json::parse(plan.output());
  const auto& placement = json["placements"][0];
  ASSERT_GT(placement["fits"].get<int>(), 0) << plan.output();
  EXPECT_THAT(json["cpu"].get<std::string>(), HasSubstr("CPU: "));
  EXPECT_GT(placement["first_token_s"].get<double>(), 0);
  EXPECT_EQ(json["recommendation"]["command"], "winnow up -f " + path);

  WinnowProcess up({"up", "-f", path});
  const std::string line = up.ReadLine();
  ASSERT_EQ(line.rfind("ready http=", 0), 0u) << line << up.errors();
  const std::string metrics = line.substr(line.find("metrics=") + 8);
  const auto& ranks = placement["ranks"];
  EXPECT_EQ(Sum(metrics, "winnow_slot_pages"), ranks[0]["slot_pages"].get<double>());
  EXPECT_EQ(Sum(metrics, "winnow_kv_block_bytes"), 0) << "before the first sequence a cache rank knows no model";
  WinnowProcess demo(
      {"demo", "--once",
       "--server=" + line.substr(line.find("grpc=") + 5, line.find(" metrics") - line.find("grpc=") - 5)});
  EXPECT_EQ(demo.Wait(), 0) << demo.errors();
  EXPECT_EQ(Sum(metrics, "winnow_kv_block_bytes"), ranks[1]["block_bytes"].get<double>());
  EXPECT_EQ(Sum(metrics, "winnow_kv_blocks"), ranks[1]["blocks"].get<double>());
}

// In one process each: what plan says, and what the one says that refuses.
TEST_F(Plan, WhatDoesNotFitIsRefusedWithTheSameWords) {
  struct Case {
    std::string inference, cache, words;
  };
  for (const Case& each :
       {Case{"", "  memory: 100TiB\n", "memory does not fit: 102400.00 GiB for KV blocks of "},
        Case{"  slot_memory: 1MiB\n", "", "slot memory of 1.0 MiB cannot hold one sequence of "},
        Case{"  prefill_memory: 1MiB\n  prefill: chunked\n", "", "prefill memory of 1.0 MiB cannot hold a prompt of "},
        Case{"  slot_memory: 100TiB\n", "", "the model does not fit: weights "}}) {
    const std::string path = Write(Manifest(each.inference, each.cache));
    WinnowProcess plan({"plan", "-f", path});
    EXPECT_EQ(plan.Wait(), 1);
    EXPECT_THAT(plan.output(), HasSubstr(each.words)) << plan.errors();
    EXPECT_THAT(plan.output(), HasSubstr("recommendation: none: "));
    WinnowProcess up({"up", "-f", path});
    EXPECT_EQ(up.Wait(), 1);
    EXPECT_THAT(up.errors(), HasSubstr(each.words));
  }
}

TEST_F(Plan, OfAModelNamesTheGpuThatItAssumesAndEndsWithACommand) {
  WinnowProcess plan({"plan", "--model=synthetic:qwen3-14b", "--gpu=H200", "--budget=8192"});
  ASSERT_EQ(plan.Wait(), 0) << plan.errors();
  EXPECT_THAT(plan.output(), HasSubstr("GPU: H200, 141 GB, by its datasheet: "));
  EXPECT_THAT(plan.output(), HasSubstr("\nrecommendation: "));
  EXPECT_THAT(plan.output(), HasSubstr("winnow up --model=synthetic:qwen3-14b "));
}

TEST_F(Plan, NeedsAModelOrAManifest) {
  WinnowProcess plan({"plan"});
  EXPECT_EQ(plan.Wait(), 2);
  EXPECT_THAT(plan.errors(), HasSubstr("give --model, or a manifest with -f"));
}

}  // namespace
}  // namespace winnow
