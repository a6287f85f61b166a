// Outputs that must be of a grammar: whatever the model would have said, and whatever happens to its ranks.
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "tests/e2e/disturbed_answers.h"
#include "tests/e2e/generation_calls.h"
#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

struct TwoInferenceRanks {
  static Cluster::Options Options() { return {.flags = {"--inference-ranks=2", "--budget=256", "--max-context=4096"}}; }
};

class Constrained : public SharedCluster<TwoInferenceRanks> {
 protected:
  static Json Request(int max_tokens, size_t prompt_tokens = 60) {
    Json request = GreedyRequest(DemoText(prompt_tokens, 3), max_tokens);
    request["ignore_eos"] = false;
    return request;
  }
};

const Json kSchema =
    Json::parse(R"({"type": "object", "properties": {"code": {"type": "integer", "minimum": 10, "maximum": 99999},
  "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3}, "note": {"type": "string", "maxLength": 12}},
  "required": ["code", "tags", "note"], "additionalProperties": false})");

TEST_F(Constrained, OutputsAreValidUnderTheirSchema) {
  Json request = Request(200);
  request["n"] = 4;
  request["temperature"] = 1.5;
  request["seed"] = 3;
  request["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", kSchema}}}};
  const HttpReply reply = cluster_->http().Post("/v1/completions", request);
  ASSERT_EQ(reply.status, 200) << reply.json();
  const Json choices = reply.json().at("choices");
  ASSERT_EQ(choices.size(), 4u);
  for (const Json& choice : choices) {
    EXPECT_EQ(choice.at("finish_reason"), "stop");
    const std::string text = choice.at("text");
    const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(value.is_object()) << text;
    EXPECT_EQ(value.size(), 3u) << text;
    EXPECT_TRUE(value.at("code").is_number_integer() && value.at("code") >= 10 && value.at("code") <= 99999) << text;
    ASSERT_TRUE(value.at("tags").size() >= 1 && value.at("tags").size() <= 3) << text;
    for (const Json& tag : value.at("tags")) EXPECT_TRUE(tag == "red" || tag == "green") << text;
  }
}

TEST_F(Constrained, OutputsAreOfTheirExpressionChoiceOrGrammar) {
  const auto text_of = [](const Json& constraint) {
    Json request = Request(60);
    request.update(constraint);
    const Completion completion = Complete(cluster_->http(), request);
    EXPECT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.finish_reason, "stop");
    return completion.text;
  };
  const std::string by_regex = text_of({{"guided_regex", "[a-f]{3}-[0-9]{4}(é|ß)"}});
  EXPECT_TRUE(std::regex_match(by_regex, std::regex("[a-f]{3}-[0-9]{4}(é|ß)"))) << by_regex;
  const std::string choice = text_of({{"structured_outputs", {{"choice", {"certainly", "by no means"}}}}});
  EXPECT_TRUE(choice == "certainly" || choice == "by no means") << choice;
  EXPECT_EQ(text_of({{"guided_grammar", "root ::= \"(\" inner \")\"\ninner ::= \"[\" inner2 \"]\"\ninner2 ::= \"x\""}}),
            "([x])");
  const Json object =
      Json::parse(text_of({{"response_format", {{"type", "json_object"}}}, {"max_tokens", 400}}), nullptr, false);
  EXPECT_TRUE(object.is_object() || object.is_discarded());  // a model may not find the end of its object
}

TEST_F(Constrained, GrpcSaysTheSame) {
  v1::GenerateRequest request = SamplesOf("", DemoText(40, 3), 1, 40);
  request.mutable_structured_output()->set_regex("[0-9]{5}");
  GenerationClient client(*cluster_);
  const Answer answer = client.Generate(request)->Finish();
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.outputs.at(0).reason, v1::FINISH_REASON_STOP);
  EXPECT_TRUE(std::regex_match(answer.outputs.at(0).text, std::regex("[0-9]{5}"))) << answer.outputs.at(0).text;
  request.mutable_structured_output()->set_regex("(");
  EXPECT_EQ(client.Generate(request)->Finish().status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(Constrained, TokensAreThoseThatMayBeDrawn) {
  Json request = Request(12);
  request["ignore_eos"] = true;
  const Completion free = Complete(cluster_->http(), request);
  ASSERT_TRUE(free.ok()) << free.error;
  request["allowed_token_ids"] = {free.ids[0], free.ids[1] + 1};
  for (const uint32_t id : Complete(cluster_->http(), request).ids) {
    EXPECT_TRUE(id == free.ids[0] || id == free.ids[1] + 1);
  }
  request.erase("allowed_token_ids");
  request["stop_token_ids"] = {free.ids[2]};
  EXPECT_LE(Complete(cluster_->http(), request).ids.size(), 3u);
  request["min_tokens"] = 8;
  const Completion later = Complete(cluster_->http(), request);
  EXPECT_GE(later.ids.size(), 8u) << "a stop token has ended it before min_tokens";
}

// The state of the grammar is worked out again from the tokens that the router has.
TEST_F(Constrained, AKilledRankLeavesNoTrace) {
  Json request = Request(240, 1600);
  request["guided_regex"] = "([a-z ]{1,9}[,;] ?([0-9]{2}:)?){80}";
  AnswerOfAKilledRank answer;
  ASSERT_NO_FATAL_FAILURE(KillARankInMidAnswer(*cluster_, request, "winnow_num_requests_running", &answer));
  const auto& [undisturbed, disturbed, tokens_at_kill] = answer;
  ASSERT_GT(undisturbed.ids.size(), 100u);
  EXPECT_LT(tokens_at_kill, undisturbed.ids.size() - 20) << "it was killed too late to matter";
  EXPECT_EQ(disturbed.text, undisturbed.text);
  EXPECT_GE(disturbed.Stat("reattach_count"), 1);
  EXPECT_EQ(cluster_->MetricsOf("router-0").Value("winnow_router_mismatched_tokens_total"), 0);
}

}  // namespace
}  // namespace winnow::e2e
