#include "tools/bench/quality/forced_decoder.h"

#include <fstream>

#include "common/base/json.h"
#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

// The demo model, and what a reference implementation in f32 makes of a prompt.
class ForcedDecoderTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = QualityModel::Load(WINNOW_SOURCE_DIR "/deploy/models/demo", 1, /*with_projection=*/true).value().release();
  }
  static void TearDownTestSuite() { delete model_; }

  // The golden case of that many prompt tokens.
  static TokenPrompt Golden(size_t tokens) {
    std::ifstream in(WINNOW_SOURCE_DIR "/tests/testdata/demo.golden.json");
    const nlohmann::json golden = nlohmann::json::parse(in);
    for (const nlohmann::json& one : golden.at("cases")) {
      if (one.at("prompt").size() == tokens) return {one.at("prompt"), one.at("greedy")};
    }
    ADD_FAILURE() << "no golden case of " << tokens << " tokens";
    return {};
  }
  static std::vector<AnswerRecord> Run(const TokenPrompt& prompt, const std::vector<SpecChoice>& specs) {
    const uint32_t length = static_cast<uint32_t>(prompt.prompt.size() + prompt.answer.size());
    const auto decoder = ForcedDecoder::Create(*model_, {.rows = specs.size(), .max_positions = length}).value();
    return decoder->Run(prompt, specs).value();
  }

  static QualityModel* model_;
};
QualityModel* ForcedDecoderTest::model_ = nullptr;

TEST_F(ForcedDecoderTest, DenseGetsEveryTokenOfItsOwnGreedyAnswer) {
  // Logit margins of these cases are above 2, far beyond bf16 noise.
  for (const size_t tokens : {373u, 425u}) {
    const TokenPrompt prompt = Golden(tokens);
    const std::vector<SpecChoice> specs = SpecGrid({"winnow:2048", "async-token:2048"}, {}).value();
    for (const AnswerRecord& record : Run(prompt, specs)) {
      // Budgets cover the context, so all are dense.
      EXPECT_EQ(record.right_tokens, 48u) << record.spec;
      EXPECT_TRUE(record.exact);
      EXPECT_EQ(record.prompt_tokens, tokens);
      EXPECT_EQ(record.decode_steps, 47u);
      EXPECT_EQ(record.mass_mean, 1);
      EXPECT_EQ(record.streamed_rows, 0u);
      EXPECT_EQ(record.scored_key_bytes, 0u);
    }
  }
}

TEST_F(ForcedDecoderTest, AWrongTokenCountsAndTheRestIsJudgedAsIfItWereRight) {
  TokenPrompt prompt = Golden(373);
  prompt.answer[47] = (prompt.answer[47] + 1) % 4096;
  AnswerRecord record = Run(prompt, SpecGrid({}, {}).value()).front();
  EXPECT_EQ(record.right_tokens, 47u);
  EXPECT_FALSE(record.exact);
  prompt.answer[0] = (prompt.answer[0] + 1) % 4096;
  record = Run(prompt, SpecGrid({}, {}).value()).front();
  EXPECT_LE(record.right_tokens, 46u);
}

TEST_F(ForcedDecoderTest, CountsWhatASelectionReadsAndMoves) {
  const TokenPrompt prompt = Golden(1692);
  const std::vector<SpecChoice> specs = SpecGrid({"exact-token:128"}, {}).value();
  const AnswerRecord record = Run(prompt, specs)[1];
  const KvLayout layout = model_->layout();
  const uint64_t lists = static_cast<uint64_t>(layout.num_layers) * layout.num_kv_heads;
  EXPECT_EQ(record.selection_lookups, 47 * lists * 128);
  uint64_t attended = 0;
  const SelectionSpec& spec = specs[1].spec;
  for (uint32_t position = 1692; position < 1692 + 47; ++position) {
    attended += spec.sink_tokens + 128 + position + 1 -
                RecentStart(position, spec.recent_tokens, spec.sink_tokens, kBlockTokens);
  }
  EXPECT_EQ(record.attended_rows, attended * lists);
  EXPECT_EQ(record.mass_count, 46 * lists);  // the last position's mass would come with the next delta
  uint64_t keys = 0;
  for (uint64_t position = 1692; position < 1692 + 47; ++position) keys += position;
  EXPECT_EQ(record.scored_key_bytes, keys * lists * layout.head_dim * 2);
  EXPECT_EQ(record.streamed_bytes, record.streamed_rows * layout.row_bytes());
  EXPECT_EQ(record.selection_hits + record.streamed_rows, record.selection_lookups);
  uint64_t in_bins = 0;
  double low = 0, high = 0;
  for (const auto& [bin, count] : record.mass_bins) {
    in_bins += count;
    low += static_cast<double>(count) * bin / 1000;
    high += static_cast<double>(count) * (bin + 1) / 1000;
  }
  EXPECT_EQ(in_bins, record.mass_count);
  EXPECT_GE(record.mass_mean * static_cast<double>(in_bins), low - 1e-6);
  EXPECT_LE(record.mass_mean * static_cast<double>(in_bins), high + 1e-6);
}

TEST_F(ForcedDecoderTest, ASpecificationAnswersAloneAsItDoesBesideOthers) {
  const TokenPrompt prompt = Golden(1692);
  std::vector<SpecChoice> specs = SpecGrid({"depth", "winnow", "async-token", "exact-token"}, {64, 128}).value();
  specs.push_back(specs[1]);  // predicts two layers ahead: a batch of its own
  specs.back().name = "further ahead";
  specs.back().spec.lookahead = 2;
  specs.push_back(specs[1]);
  specs.back().name = "guarded";
  specs.back().spec.min_captured_mass = 0.9f;
  specs.push_back(specs[1]);
  specs.back().name = "projected there";
  specs.back().spec.projection = Projection::kCacheRank;
  const std::vector<AnswerRecord> together = Run(prompt, specs);
  ASSERT_EQ(together.size(), specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(Run(prompt, {specs[i]}).front(), together[i]) << specs[i].name << ":" << specs[i].budget();
  }
  const AnswerRecord& guarded = together[specs.size() - 2];
  EXPECT_GT(guarded.corrections, 0u);
  EXPECT_GT(guarded.mass_mean, guarded.mass_before_mean);
  EXPECT_GE(guarded.mass_bins.begin()->first, 900);
}

}  // namespace
}  // namespace winnow
