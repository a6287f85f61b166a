// Mixtures of experts, layers with sliding windows and sinks, latent attention, whose rows hold a key that is the
// value, too, models that bring an indexer, and hybrid ones, whose linear attention keeps states in the place of rows:
// what a cluster does with rows, it does with theirs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <future>
#include <string>

#include "tests/e2e/model_cluster.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow::e2e {
namespace {

struct Model {
  const char* name;
  TinyModel model;
  std::vector<Json> selections;  // of requests; one that attends to everything first
  // Who shares prefixes. Of layers with a sliding window selections keep no old rows, so that only what attends to
  // everything does; behind a prefix of a hybrid model there is no state.
  enum class Shares { kAll, kDense, kNobody } shares = Shares::kAll;
};
void PrintTo(const Model& value, std::ostream* out) {
  *out << value.name;
}

class ModelKinds : public ModelCluster<Model> {
 protected:
  static constexpr int kTokens = 48;

  ModelKinds() { Write(GetParam().model); }
  void Write(TinyModel model) const {
    model.num_layers = std::max(model.num_layers, 3);
    model.max_position_embeddings = 4096;
    WriteTinyCheckpoint(model, directory_.path());
  }
  static Json Request(const TokenIds& prompt, const Json& selection, int tokens = kTokens) {
    Json request = GreedyRequest(prompt, tokens);
    request["logprobs"] = 1;
    if (!selection.is_null()) request["winnow"] = selection;
    return request;
  }
};

// Selections with the same index of keys share prefixes, and the model's indexer shares none with others.
TEST_P(ModelKinds, APromptOfWhichTheBeginningIsKeptGetsTheSameAnswer) {
  const auto request = [&](const Json& selection) { return Request(Prompt(700, 1), selection); };
  Start({"--prefix-cache=false"});
  std::vector<Completion> computed;
  for (const Json& selection : GetParam().selections) computed.push_back(Ask(request(selection)));
  Start();
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (size_t i = 0; i < computed.size(); ++i) {
      SCOPED_TRACE(GetParam().selections[i].dump());
      const Completion answer = Ask(request(GetParam().selections[i]));
      if (repeat == 1) {
        const int cached = answer.usage.at("prompt_tokens_details").at("cached_tokens").get<int>();
        if (GetParam().shares == Model::Shares::kAll || (i == 0 && GetParam().shares == Model::Shares::kDense)) {
          EXPECT_GE(cached, 512);
        } else {
          EXPECT_EQ(cached, 0);
        }
      }
      EXPECT_EQ(answer.ids, computed[i].ids);
      EXPECT_EQ(LogProbs(answer), LogProbs(computed[i]));
    }
  }
}

TEST_P(ModelKinds, TiersAndRanksOfTheirOwnChangeNoAnswer) {
  Start();
  std::vector<Completion> together;
  for (const Json& selection : GetParam().selections) together.push_back(Ask(Request(Prompt(600, 7), selection)));
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--prefill-ranks=1", "--decode-ranks=1"},
                                                std::vector<std::string>{"--fast-memory=640KiB"},
                                                std::vector<std::string>{"--cache-ranks=3", "--cache-shards=3"}}) {
    SCOPED_TRACE(flags.front());
    Start(flags);
    for (size_t i = 0; i < together.size(); ++i) {
      SCOPED_TRACE(GetParam().selections[i].dump());
      const Completion apart = Ask(Request(Prompt(600, 7), GetParam().selections[i]));
      EXPECT_EQ(apart.ids, together[i].ids);
      EXPECT_EQ(LogProbs(apart), LogProbs(together[i]));
    }
  }
}

TEST_P(ModelKinds, AnAnswerGoesOnWhereItsInferenceRankIsKilled) {
  for (const Json& selection : GetParam().selections) {
    SCOPED_TRACE(selection.dump());
    Start({"--inference-ranks=2"});
    const std::vector<pid_t> pids = cluster_->Pids("inference-rank");
    ASSERT_EQ(pids.size(), 2u);
    constexpr int kLong = 400;
    const Json request = Request(Prompt(500, 5), selection, kLong);
    const Completion undisturbed = Ask(request);
    size_t tokens_at_kill = 0;
    const Completion disturbed = StreamCompletion(cluster_->http(), request, [&](size_t tokens) {
      for (size_t rank = 0; rank < 2 && tokens_at_kill == 0 && tokens >= 10; ++rank) {
        const Metrics metrics = cluster_->MetricsOf("inference-" + std::to_string(rank));
        if (metrics.Value("winnow_num_requests_running") < 1) continue;
        kill(pids[rank], SIGKILL);
        tokens_at_kill = tokens;
      }
      return true;
    });
    ASSERT_GT(tokens_at_kill, 0u) << "no rank was killed";
    EXPECT_LT(tokens_at_kill, kLong - 20u) << "it was killed too late to matter";
    EXPECT_TRUE(disturbed.ok()) << disturbed.error;
    EXPECT_EQ(disturbed.ids, undisturbed.ids);
    EXPECT_GE(disturbed.Stat("reattach_count"), 1);
  }
}

// With room for one of them, and slices so short that each loses its place again and again.
TEST_P(ModelKinds, AnswersThatTakeEachOthersPlaceStayTheSame) {
  constexpr int kLong = 300, kTries = 10;
  const auto request = [&](uint32_t i, const Json& selection) {
    return Request(Prompt(300, 20 + i), selection, kLong);
  };
  Start({"--selection=dense", "--max-running=1", "--age-bound=20ms"});
  for (const Json& selection : GetParam().selections) {
    SCOPED_TRACE(selection.dump());
    const Completion alone[] = {Ask(request(0, selection)), Ask(request(1, selection))};
    double preempted = 0;
    for (int attempt = 0; attempt < kTries && preempted == 0; ++attempt) {
      std::future<Completion> other = std::async(std::launch::async, [&] { return Ask(request(1, selection)); });
      const Completion together[] = {Ask(request(0, selection)), other.get()};
      for (const int i : {0, 1}) {
        preempted += together[i].Stat("preempted_count");
        EXPECT_EQ(together[i].ids, alone[i].ids);
        EXPECT_EQ(LogProbs(together[i]), LogProbs(alone[i]));
      }
    }
    EXPECT_GT(preempted, 0);
  }
}

const Json kDense = {{"selection", "dense"}}, kSparse = {{"selection", "winnow"}, {"budget", 32}},
           kNative = {{"selection", "native"}};

const TinyModel kExperts = {.family = ModelFamily::kQwen3Moe};
const TinyModel kWindowsAndSinks = {.family = ModelFamily::kGptOss, .num_layers = 4, .attention_bias = true};
const TinyModel kWindowsWithRopeOfTheirOwn = {
    .family = ModelFamily::kOlmo3,
    .num_layers = 4,
    .rope_parameters = {
        {"rope_type", "yarn"}, {"rope_theta", 10000.0}, {"factor", 4.0}, {"original_max_position_embeddings", 1024}}};
const TinyModel kHybrid = {.family = ModelFamily::kQwen3Next, .num_layers = 6};
const TinyModel kLatent = {.family = ModelFamily::kDeepseekV3}, kIndexer = {.family = ModelFamily::kDeepseekV32};

INSTANTIATE_TEST_SUITE_P(
    Models, ModelKinds,
    testing::Values(Model{"Qwen3Moe", kExperts, {kDense, kSparse}},
                    Model{"GptOss", kWindowsAndSinks, {kDense, kSparse}, Model::Shares::kDense},
                    Model{"Olmo3", kWindowsWithRopeOfTheirOwn, {kDense, kSparse}, Model::Shares::kDense},
                    Model{"Qwen3Next", kHybrid, {kDense, kSparse}, Model::Shares::kNobody},
                    Model{"DeepseekV3", kLatent, {kDense, kSparse}},
                    Model{"DeepseekV32", kIndexer, {kDense, kSparse, kNative}}),
    [](const auto& info) { return std::string(info.param.name); });

class Native : public ModelKinds {};

TEST_P(Native, IsTheDefaultAndAttendsToNoMoreThanTheModelSays) {
  Start();
  const TokenIds prompt = Prompt(700, 3);
  const Completion by_default = Ask(Request(prompt, nullptr)), native = Ask(Request(prompt, kNative)),
                   dense = Ask(Request(prompt, kDense));
  EXPECT_EQ(LogProbs(by_default), LogProbs(native));
  EXPECT_NE(LogProbs(native), LogProbs(dense));
  EXPECT_GT(native.Stat("streamed_rows"), 0);
  // Fewer rows than the model was trained with are another answer, more are not to be had.
  const Completion fewer = Ask(Request(prompt, {{"selection", "native"}, {"budget", 16}}));
  EXPECT_NE(LogProbs(fewer), LogProbs(native));
  const Completion more = Ask(Request(prompt, {{"selection", "native"}, {"budget", 500}}));
  EXPECT_EQ(LogProbs(more), LogProbs(native));
}

TEST_P(Native, IsRefusedInWordsWhereAModelBringsNoIndexer) {
  Write(kLatent);
  Start();
  const Completion refused = Complete(cluster_->http(), Request(Prompt(300, 3), kNative));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.error, testing::HasSubstr("the model brings none"));
}

INSTANTIATE_TEST_SUITE_P(Models, Native,
                         testing::Values(Model{"DeepseekV32", kIndexer, {}},
                                         Model{"GlmMoeDsa", {.family = ModelFamily::kGlmMoeDsa}, {}}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace winnow::e2e
