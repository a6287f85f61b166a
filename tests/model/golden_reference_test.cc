// The plain forward pass against logits of transformers: pins the meaning of config.json, RoPE and the weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "common/base/json.h"
#include "common/model/model_tensors.h"
#include "tests/support/golden_models.h"
#include "tests/support/reference_model.h"
#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

using nlohmann::json;

// The golden logits are f32 sums in another order, printed with 5 digits.
constexpr double kTolerance = 2e-3;

struct Golden {
  std::string name;
  std::string model;  // directory
  std::string file;
  size_t max_prompt_tokens;  // longer cases are left to faster code
};

std::vector<Golden> Goldens() {
  std::vector<Golden> goldens;
  for (const char* name : {"llama3-rope-scaled", "qwen2-bias-tied", "qwen3-headdim"}) {
    const std::string path = std::string("tests/testdata/tiny/") + name;
    goldens.push_back({name, path, path + "/golden.json", 1500});
  }
  goldens.push_back({"demo", "deploy/models/demo", "tests/testdata/demo.golden.json", 60});
  for (const GoldenModel& golden : GoldenModels()) goldens.push_back({golden.name, golden.path, golden.file, 300});
  return goldens;
}

void PrintTo(const Golden& golden, std::ostream* out) {
  *out << golden.name;
}

class GoldenReferenceTest : public testing::TestWithParam<Golden> {};

double LogSumExp(const std::vector<float>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

void ExpectLastLogits(const std::vector<float>& logits, const json& golden) {
  const auto ids = golden["top_ids"].get<std::vector<uint32_t>>();
  const auto expected = golden["top_logits"].get<std::vector<double>>();
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_NEAR(logits[ids[i]], expected[i], kTolerance) << "rank " << i;
  const std::set<uint32_t> top(ids.begin(), ids.end());
  for (uint32_t id = 0; id < logits.size(); ++id) {
    if (top.contains(id)) continue;
    EXPECT_LE(logits[id], expected.back() + kTolerance) << "token " << id;
  }
  EXPECT_NEAR(LogSumExp(logits), golden["logsumexp"].get<double>(), kTolerance);
}

// Greedy tokens up to the first step whose margin is within the rounding of two arithmetics.
void ExpectGreedy(ReferenceModel& model, const json& golden, size_t max_steps) {
  const auto greedy = golden["greedy"].get<std::vector<uint32_t>>();
  const auto margin = golden["margin"].get<std::vector<double>>();
  for (size_t step = 0; step < std::min(max_steps, greedy.size()) && margin[step] > 2 * kTolerance; ++step) {
    const std::vector<float> logits = model.Logits();
    const auto best = static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    ASSERT_EQ(best, greedy[step]) << "step " << step;
    model.Append(best);
  }
}

TEST_P(GoldenReferenceTest, LogitsAndGreedyTokensMatch) {
  const std::string directory = GetParam().model;
  const absl::StatusOr<ModelConfig> config = LoadModelConfig(directory);
  ASSERT_THAT(config, IsOkStatus());
  EXPECT_THAT(config->warnings, testing::Each(testing::Not(testing::HasSubstr("ignored"))));
  const auto checkpoint = Checkpoint::Open(directory);
  ASSERT_THAT(checkpoint, IsOkStatus());
  const auto warnings = ValidateTensors(**checkpoint, *config);
  ASSERT_THAT(warnings, IsOkStatus());
  EXPECT_THAT(*warnings, testing::IsEmpty());
  ReferenceModel model(**checkpoint, *config);

  const json golden = json::parse(std::ifstream(GetParam().file));
  int checked = 0;
  for (const json& item : golden["cases"]) {
    const auto prompt = item["prompt"].get<std::vector<uint32_t>>();
    if (prompt.size() > GetParam().max_prompt_tokens) continue;
    SCOPED_TRACE(item["name"].get<std::string>());
    model.Clear();
    for (const uint32_t token : prompt) model.Append(token);
    ExpectLastLogits(model.Logits(), item);
    ExpectGreedy(model, item, 24);
    ++checked;
  }
  EXPECT_GE(checked, 2);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenReferenceTest, testing::ValuesIn(Goldens()),
                         [](const auto& info) { return TestNameOf(info.param.name); });

}  // namespace
}  // namespace winnow
