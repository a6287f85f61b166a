// The HTTP API of a whole cluster. Every field's parsing has its own table in tests/router/openai; here is one case of
// each kind, and what only a model behind the API can show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

using testing::HasSubstr;

struct DemoServer {
  static Cluster::Options Options() {
    return {.flags = {"--budget=256", "--max-context=4096", "--model-id=demo-model"}};
  }
};
class Api : public SharedCluster<DemoServer> {
 protected:
  static Json Chat(const std::string& content) {
    return {{"messages", {{{"role", "user"}, {"content", content}}}}, {"temperature", 0}, {"max_tokens", 32}};
  }
};

constexpr char kFact[] = "The code of nerita is 271828. What is the code of nerita?";

TEST_F(Api, RefusesBadRequestsAndNamesTheField) {
  const Json ids = {1000, 1001, 1002};
  const struct {
    const char* path;
    Json body;
    int status;
    const char* param;  // null: none
  } cases[] = {
      {"/v1/completions", Json::object(), 400, "prompt"},
      {"/v1/completions", {{"prompt", 5}}, 400, "prompt"},
      {"/v1/completions", {{"prompt", Json::array()}}, 400, "prompt"},
      {"/v1/completions", {{"prompt", {1, 4096}}}, 400, "prompt"},
      {"/v1/completions", {{"prompt", DemoText(4096)}}, 400, "prompt"},
      {"/v1/completions", {{"prompt", ids}, {"max_tokens", 0}}, 400, "max_tokens"},
      {"/v1/completions", {{"prompt", ids}, {"max_tokens", 4094}}, 400, "max_tokens"},
      {"/v1/completions", {{"prompt", ids}, {"temperature", -1}}, 400, "temperature"},
      {"/v1/completions", {{"prompt", ids}, {"temperature", "hot"}}, 400, "temperature"},
      {"/v1/completions", {{"prompt", ids}, {"top_p", 0}}, 400, "top_p"},
      {"/v1/completions", {{"prompt", ids}, {"n", 0}}, 400, "n"},
      {"/v1/completions", {{"prompt", ids}, {"stop", {""}}}, 400, "stop"},
      {"/v1/completions", {{"prompt", ids}, {"logprobs", 21}}, 400, "logprobs"},
      {"/v1/completions", {{"prompt", ids}, {"stream_options", Json::object()}}, 400, "stream_options"},
      {"/v1/completions", {{"prompt", ids}, {"winnow", {{"selection", "best"}}}}, 400, "winnow.selection"},
      {"/v1/completions", {{"prompt", ids}, {"winnow", {{"budget", 257}}}}, 400, "winnow.budget"},
      {"/v1/completions", {{"prompt", ids}, {"winnow", {{"min_captured_mass", 1.5}}}}, 400, "winnow.min_captured_mass"},
      {"/v1/completions", {{"prompt", ids}, {"model", "gpt-4"}}, 404, "model"},
      {"/v1/chat/completions", {{"messages", Json::array()}}, 400, "messages"},
      {"/v1/chat/completions", {{"messages", {{{"role", "wizard"}, {"content", "x"}}}}}, 400, "messages[0].role"},
      {"/v1/chat/completions", {{"messages", {{{"role", "user"}}}}}, 400, "messages[0].content"},
      {"/v1/chat/completions",
       {{"messages", {{{"role", "user"}, {"content", "x"}}}}, {"tools", {Json::object()}}},
       400,
       "tools[0].type"},
      {"/v1/chat/completions",
       {{"messages", {{{"role", "user"}, {"content", "x"}}}},
        {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}},
       400,
       "tools"},
      {"/v1/chat/completions",
       {{"messages", {{{"role", "user"}, {"content", "x"}}}}, {"max_token", 5}},
       400,
       "max_token"},
      {"/v1/nothing", Json::object(), 404, nullptr},
      {"/detokenize", {{"tokens", {4096}}}, 400, "tokens"},
  };
  for (const auto& item : cases) {
    SCOPED_TRACE(item.path + item.body.dump().substr(0, 200));
    const HttpReply reply = cluster_->http().Post(item.path, item.body);
    EXPECT_EQ(reply.status, item.status) << reply.body;
    const Json error = reply.json();
    ASSERT_TRUE(error.is_object() && error.contains("error")) << reply.body;
    EXPECT_FALSE(error["error"]["message"].get<std::string>().empty());
    EXPECT_EQ(error["error"]["param"], item.param == nullptr ? Json() : Json(item.param)) << reply.body;
  }
}

TEST_F(Api, RefusesWhatIsNoRequest) {
  const HttpClient http = cluster_->http();
  EXPECT_EQ(http.Send("POST", "/v1/completions", "{\"prompt\": ").status, 400);
  EXPECT_EQ(http.Send("POST", "/v1/completions", "[1]").status, 400);
  EXPECT_EQ(http.Send("GET", "/v1/completions", "").status, 405);
  EXPECT_EQ(http.Send("POST", "/v1/completions", std::string(17 << 20, ' ')).status, 413);
  EXPECT_TRUE(Complete(http, GreedyRequest({1000}, 1)).ok()) << "the server must have survived";
}

TEST_F(Api, AnswersAQuestion) {
  const HttpReply reply = cluster_->http().Post("/v1/chat/completions", Chat(kFact));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json answer = reply.json();
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["model"], "demo-model");
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_THAT(choice["message"]["content"].get<std::string>(), HasSubstr("271828"));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["total_tokens"].get<int>(),
            answer["usage"]["prompt_tokens"].get<int>() + answer["usage"]["completion_tokens"].get<int>());
}

TEST_F(Api, TellsHowFarAPromptIs) {
  const auto progress_of = [&](const Json& request) {
    std::vector<Json> told;
    bool answered = false;
    const HttpReply reply = cluster_->http().Stream("/v1/completions", request, [&](std::string_view data) {
      if (data == "[DONE]") return true;
      const Json chunk = Json::parse(data);
      answered |= !chunk["choices"].empty();
      if (!chunk.contains("winnow")) return true;
      EXPECT_FALSE(answered);
      EXPECT_TRUE(chunk["choices"].empty());
      told.push_back(chunk["winnow"]["prompt_progress"]);
      return true;
    });
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_TRUE(answered);
    return told;
  };
  Json request = GreedyRequest(DemoText(3800, 17), 2);
  request["stream"] = true;
  EXPECT_TRUE(progress_of(request).empty());
  request["prompt"] = DemoText(3800, 18);
  request["winnow"] = {{"prompt_progress", true}};
  const std::vector<Json> told = progress_of(request);
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told[0]["computed_tokens"], told[0]["cached_tokens"]) << "told before anything was computed";
  for (size_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i]["prompt_tokens"], 3800);
    EXPECT_LE(told[i]["computed_tokens"], 3800);
    if (i > 0) {
      EXPECT_GT(told[i]["computed_tokens"], told[i - 1]["computed_tokens"]);
    }
  }
  // The second time it is in the prefix cache.
  const std::vector<Json> again = progress_of(request);
  ASSERT_FALSE(again.empty());
  EXPECT_GT(again[0]["cached_tokens"], 3000);
  EXPECT_EQ(again[0]["computed_tokens"], again[0]["cached_tokens"]);
}

TEST_F(Api, StreamsTheSameAnswer) {
  Json request = Chat(kFact);
  const std::string whole =
      cluster_->http().Post("/v1/chat/completions", request).json()["choices"][0]["message"]["content"];
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}};
  std::string text, role, reason, last;
  Json usage;
  const HttpReply reply = cluster_->http().Stream("/v1/chat/completions", request, [&](std::string_view data) {
    last = std::string(data);
    if (data == "[DONE]") return true;
    const Json chunk = Json::parse(data);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    for (const Json& choice : chunk["choices"]) {
      text += choice["delta"].value("content", "");
      role += choice["delta"].value("role", "");
      if (choice["finish_reason"].is_string()) reason = choice["finish_reason"];
    }
    if (chunk["usage"].is_object()) {
      EXPECT_TRUE(chunk["choices"].empty());
      usage = chunk["usage"];
    }
    return true;
  });
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(last, "[DONE]");
  EXPECT_EQ(text, whole);
  EXPECT_EQ(role, "assistant");
  EXPECT_EQ(reason, "stop");
  ASSERT_TRUE(usage.is_object());
  EXPECT_GT(usage["completion_tokens"], 0);
  EXPECT_TRUE(usage.contains("winnow"));
}

TEST_F(Api, DrawsSeveralSamples) {
  Json request = {{"prompt", DemoText(40)},   {"n", 2},           {"seed", 7},         {"temperature", 1.5},
                  {"return_token_ids", true}, {"max_tokens", 16}, {"ignore_eos", true}};
  const Json first = cluster_->http().Post("/v1/completions", request).json();
  ASSERT_EQ(first["choices"].size(), 2u) << first.dump();
  EXPECT_EQ(first["choices"][1]["index"], 1);
  EXPECT_NE(first["choices"][0]["token_ids"], first["choices"][1]["token_ids"]);
  EXPECT_EQ(first["usage"]["completion_tokens"], 32);
  const Json again = cluster_->http().Post("/v1/completions", request).json();
  EXPECT_EQ(again["choices"], first["choices"]) << "the same seed must give the same samples";
  request["seed"] = 8;
  const Json other = cluster_->http().Post("/v1/completions", request).json();
  EXPECT_NE(other["choices"][0]["token_ids"], first["choices"][0]["token_ids"]);
}

TEST_F(Api, StopsAtAString) {
  Json request = GreedyRequest(DemoText(40), 32);
  const Completion whole = Complete(cluster_->http(), request);
  ASSERT_TRUE(whole.ok()) << whole.error;
  ASSERT_GT(whole.text.size(), 12u);
  const std::string stop = whole.text.substr(8, 4);
  request["stop"] = stop;
  const Completion stopped = Complete(cluster_->http(), request);
  ASSERT_TRUE(stopped.ok()) << stopped.error;
  EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(stop)));
  EXPECT_EQ(stopped.finish_reason, "stop");
  EXPECT_EQ(stopped.choice["stop_reason"], stop);
  EXPECT_EQ(StreamCompletion(cluster_->http(), request).text, stopped.text);
}

TEST_F(Api, StopsAtATokenId) {
  Json request = GreedyRequest(DemoText(40), 32);
  const Completion whole = Complete(cluster_->http(), request);
  ASSERT_TRUE(whole.ok()) << whole.error;
  request["stop_token_ids"] = {whole.ids[5]};
  const Completion stopped = Complete(cluster_->http(), request);
  EXPECT_EQ(stopped.finish_reason, "stop");
  EXPECT_LE(stopped.ids.size(), 6u);
}

TEST_F(Api, ReportsLogprobs) {
  Json request = Chat(kFact);
  request["logprobs"] = true;
  request["top_logprobs"] = 3;
  const Json answer = cluster_->http().Post("/v1/chat/completions", request).json();
  const Json& content = answer["choices"][0]["logprobs"]["content"];
  ASSERT_TRUE(content.is_array() && !content.empty()) << answer.dump();
  for (const Json& token : content) {
    ASSERT_EQ(token["top_logprobs"].size(), 3u);
    // Greedy: the token is the likeliest one.
    EXPECT_EQ(token["token"], token["top_logprobs"][0]["token"]);
    EXPECT_EQ(token["logprob"], token["top_logprobs"][0]["logprob"]);
    EXPECT_LE(token["logprob"].get<double>(), 0);
    EXPECT_GE(token["top_logprobs"][0]["logprob"], token["top_logprobs"][1]["logprob"]);
  }
}

TEST_F(Api, TokenizesThereAndBack) {
  const std::string text = "Die Größe von x ist 3.14 — naïve?\n\tif (a != b) return; \xF0\x9F\x98\x80";
  const Json tokens = cluster_->http().Post("/tokenize", {{"prompt", text}}).json();
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(tokens["max_model_len"], 4096);
  EXPECT_EQ(cluster_->http().Post("/detokenize", {{"tokens", tokens["tokens"]}}).json()["prompt"], text);
}

TEST_F(Api, TakesTextAndItsTokensForTheSame) {
  const std::string text = "The code of nerita is";
  const Json tokens = cluster_->http().Post("/tokenize", {{"prompt", text}}).json()["tokens"];
  Json request = GreedyRequest(tokens.get<TokenIds>(), 8);
  const Completion by_ids = Complete(cluster_->http(), request);
  request["prompt"] = text;
  const Completion by_text = Complete(cluster_->http(), request);
  ASSERT_TRUE(by_text.ok()) << by_text.error;
  EXPECT_EQ(by_text.ids, by_ids.ids);
}

TEST_F(Api, SaysWhatItServes) {
  const Json models = cluster_->http().Get("/v1/models").json();
  ASSERT_EQ(models["data"].size(), 1u) << models.dump();
  EXPECT_EQ(models["data"][0]["id"], "demo-model");
  EXPECT_EQ(cluster_->http().Get("/v1/models/demo-model").status, 200);
  EXPECT_EQ(cluster_->http().Get("/v1/models/other").status, 404);
  EXPECT_EQ(cluster_->http().Get("/health").status, 200);
  EXPECT_EQ(cluster_->http().Get("/ready").status, 200);
  EXPECT_THAT(cluster_->http().Get("/metrics").body, HasSubstr("winnow_requests_total"));
}

}  // namespace
}  // namespace winnow::e2e
