// A model loaded and asked in this very process.
#include "engine/embedded_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "clients/cpp/client.h"
#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

constexpr char kQuestion[] = "The code of nerita is 271828. What is the code of nerita?";
constexpr char kAnswer[] = "The code of nerita is 271828.";

EmbeddedEngineOptions Demo() {
  return {.model_dir = "deploy/models/demo",
          .budget_tokens = 256,
          .max_context_tokens = 4096,
          .device = "cpu",
          .threads = 2,
          .cache_memory_bytes = 64 << 20};
}

v1::GenerateRequest Question() {
  v1::GenerateRequest request = ChatRequest({{"user", kQuestion}});
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(48);
  return request;
}

std::string TextOf(const absl::StatusOr<GeneratedAnswer>& answer) {
  return answer.ok() && answer->outputs.size() == 1 ? answer->outputs[0].text : answer.status().ToString();
}

TEST(EmbeddedEngineTest, AnswersSeveralAtOnce) {
  const absl::StatusOr<std::unique_ptr<EmbeddedEngine>> engine = EmbeddedEngine::Load(Demo());
  ASSERT_THAT(engine, IsOkStatus());
  const Client client = (*engine)->client();
  std::vector<std::future<absl::StatusOr<GeneratedAnswer>>> answers;
  for (int i = 0; i < 4; ++i) {
    answers.push_back(std::async(std::launch::async, [&] { return client.Generate(Question()).ReadAll(); }));
  }
  for (auto& answer : answers) EXPECT_EQ(TextOf(answer.get()), kAnswer);
  const auto models = client.ListModels();
  ASSERT_THAT(models, IsOkStatus());
  EXPECT_EQ(models->at(0).max_context_tokens(), 4096u);
  EXPECT_EQ(models->at(0).max_budget_tokens(), 256u);
}

TEST(EmbeddedEngineTest, TwoStandSideBySide) {
  const absl::StatusOr<std::unique_ptr<EmbeddedEngine>> one = EmbeddedEngine::Load(Demo()),
                                                        other = EmbeddedEngine::Load(Demo());
  ASSERT_THAT(one, IsOkStatus());
  ASSERT_THAT(other, IsOkStatus());
  EXPECT_EQ(TextOf((*one)->client().Generate(Question()).ReadAll()), kAnswer);
  EXPECT_EQ(TextOf((*other)->client().Generate(Question()).ReadAll()), kAnswer);
}

TEST(EmbeddedEngineTest, EndsWithAnswersUnderWay) {
  absl::StatusOr<std::unique_ptr<EmbeddedEngine>> engine = EmbeddedEngine::Load(Demo());
  ASSERT_THAT(engine, IsOkStatus());
  const Client client = (*engine)->client();
  v1::GenerateRequest endless = Question();
  endless.set_max_tokens(3500);
  endless.set_ignore_eos(true);
  AnswerStream stream = client.Generate(endless);
  v1::GenerateResponse event;
  ASSERT_TRUE(stream.Read(event));
  *engine = nullptr;
  EXPECT_THAT(stream.Finish(), FailsWith(StatusCode::kUnavailable, testing::_));
  EXPECT_THAT(client.ListModels(), FailsWith(StatusCode::kUnavailable, testing::_));
}

TEST(EmbeddedEngineTest, SaysWhatItCannotLoad) {
  EmbeddedEngineOptions options = Demo();
  options.model_dir = "/no/such/model";
  EXPECT_THAT(EmbeddedEngine::Load(options).status().ToString(), HasSubstr("/no/such/model"));
  options = Demo();
  options.selection = "psychic";
  EXPECT_THAT(EmbeddedEngine::Load(options), FailsWith(StatusCode::kInvalidArgument, HasSubstr("psychic")));
  options = Demo();
  options.device = "abacus";
  EXPECT_THAT(EmbeddedEngine::Load(options), FailsWith(StatusCode::kInvalidArgument, HasSubstr("abacus")));
  options = Demo();
  options.cache_memory_bytes = int64_t{1} << 60;
  EXPECT_THAT(EmbeddedEngine::Load(options), FailsWith(StatusCode::kResourceExhausted, HasSubstr("memory")));
}

}  // namespace
}  // namespace winnow
