// Served answers against those of a reference implementation in f32 (tests/testdata), with dense attention, or that of
// the model's own indexer.
#include "tests/e2e/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <ostream>

#include "tests/e2e/cluster.h"
#include "tests/support/golden_models.h"

namespace winnow::e2e {
namespace {

struct Model {
  std::string name;
  std::string path;
  std::string golden;
  bool is_trained = true;  // else its weights are random
  const char* selection = "dense";
};

void PrintTo(const Model& model, std::ostream* out) {
  *out << model.name;
}

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<Model> Models() {
  std::vector<Model> models = {{"demo", DemoModel(), SourcePath("tests/testdata/demo.golden.json")}};
  for (const char* name : {"llama3-rope-scaled", "qwen2-bias-tied", "qwen3-headdim"}) {
    const std::string path = SourcePath(std::string("tests/testdata/tiny/") + name);
    models.push_back({name, path, path + "/golden.json", false});
  }
  for (const GoldenModel& model : GoldenModels()) {
    // Where the reference attends to what the model's indexer chooses, so does this.
    const bool has_indexer = model.name == "deepseek-v32" || model.name == "glm-moe-dsa";
    models.push_back({model.name, model.path, model.file, false, has_indexer ? "native" : "dense"});
  }
  for (const char* name : {"qwen3-fp8-block128", "qwen3-gptq-int4", "qwen3-awq-int4"}) {
    const std::string path = FromEnvironment("WINNOW_GOLDEN_DIR") + "/models/" + name;
    models.push_back({name, path, path + "/golden.json", false});
  }
  models.push_back(
      {"bench", FromEnvironment("WINNOW_BENCH_MODEL"), FromEnvironment("WINNOW_GOLDEN_DIR") + "/bench.golden.json"});
  return models;
}

class Golden : public testing::TestWithParam<Model> {
 protected:
  struct Result {
    int cases = 0;
    int equal = 0;  // over all tokens
  };

  void SetUp() override {
    if (GetParam().path.empty() || !std::filesystem::exists(GetParam().golden)) {
      GTEST_SKIP() << "set WINNOW_GOLDEN_DIR to the folder of bench.golden.json and models/, and for bench "
                      "WINNOW_BENCH_MODEL to the model's";
    }
  }

  // Runs all cases. `tolerance` is that of a log probability, half that of a margin; `check_margins`: ids must agree up
  // to the first step at which the reference itself is undecided.
  Result Run(const std::vector<std::string>& dtype_flags, double tolerance, bool check_margins) {
    Result result;
    Cluster::Options options;
    options.model = GetParam().path;
    options.flags = {std::string("--selection=") + GetParam().selection, "--max-running=4"};
    options.flags.insert(options.flags.end(), dtype_flags.begin(), dtype_flags.end());
    const absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
    if (!cluster.ok()) {
      ADD_FAILURE() << cluster.status().message();
      return result;
    }
    for (const GoldenCase& golden : LoadGolden(GetParam().golden)) {
      SCOPED_TRACE(GetParam().name + " " + golden.name);
      Json request = GreedyRequest(golden.prompt, static_cast<int>(golden.greedy.size()));
      request["logprobs"] = 20;
      const Completion completion = Complete((*cluster)->http(), request);
      EXPECT_TRUE(completion.ok()) << completion.error;
      if (!completion.ok()) continue;
      EXPECT_EQ(completion.ids.size(), golden.greedy.size());
      CheckFirstStep(completion, golden, tolerance);
      if (check_margins) CheckIds(completion, golden, 2 * tolerance);
      ++result.cases;
      result.equal += completion.ids == golden.greedy;
    }
    const absl::Status stopped = (*cluster)->Stop();
    EXPECT_TRUE(stopped.ok()) << stopped.message();
    return result;
  }

 private:
  // The most likely log probabilities after the prompt. They come by the text of their token, and of two tokens with
  // the same text the likelier one; so values are compared by rank.
  static void CheckFirstStep(const Completion& completion, const GoldenCase& golden, double tolerance) {
    const Json& top = completion.choice.at("logprobs").at("top_logprobs").at(0);
    std::vector<double> values;
    for (const Json& value : top) values.push_back(value.get<double>());
    std::sort(values.begin(), values.end(), std::greater<>());
    ASSERT_GE(values.size(), golden.top_logits.size()) << top.dump();
    for (size_t i = 0; i < golden.top_logits.size(); ++i) {
      EXPECT_NEAR(values[i], golden.top_logits[i] - golden.logsumexp, tolerance) << "rank " << i;
    }
  }

  static void CheckIds(const Completion& completion, const GoldenCase& golden, double undecided) {
    for (size_t step = 0; step < std::min(completion.ids.size(), golden.greedy.size()); ++step) {
      if (golden.margin[step] < undecided) return;
      ASSERT_EQ(completion.ids[step], golden.greedy[step]) << "step " << step << ", margin " << golden.margin[step];
    }
  }
};

// Both sides compute in f32 and differ by the order of their sums: 2e-3 is some 50 times what has been seen.
TEST_P(Golden, F32FollowsTheReference) {
  const Result result = Run({"--compute=f32", "--kv-dtype=f32"}, 2e-3, /*check_margins=*/true);
  EXPECT_GT(result.cases, 0);
}

// bf16 keeps 8 bits: a logit of 20 is off by up to 0.08 for its own rounding alone.
TEST_P(Golden, Bf16IsClose) {
  if (!GetParam().is_trained) {
    GTEST_SKIP() << "random weights decide by margins below what bf16 resolves; unit tests cover their layers";
  }
  const Result result = Run({}, 0.1, /*check_margins=*/false);
  EXPECT_EQ(result.cases, 13);
  EXPECT_GE(result.equal, 9) << "of " << result.cases << " cases equal over all tokens";
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::ValuesIn(Models()),
                         [](const auto& info) { return TestNameOf(info.param.name); });

}  // namespace
}  // namespace winnow::e2e
