#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/metrics/version.h"
#include "router/keys/retry_after.h"
#include "tests/router/openai/openai_service_fixture.h"

namespace winnow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(OpenAiServiceTest, ServesModels) {
  TestClient client(port());
  client.Request("GET", "/v1/models");
  const Json list = Json::parse(client.ReadResponse().body);
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "org/tiny");
  EXPECT_EQ(list["data"][0]["max_model_len"], 100'000);
  for (const char* path : {"/v1/models/org/tiny", "/v1/models/org%2Ftiny"}) {
    client.Request("GET", path);
    EXPECT_EQ(Json::parse(client.ReadResponse().body), list["data"][0]);
  }
  client.Request("GET", "/v1/models/small");
  const Json alias = Json::parse(client.ReadResponse().body);
  EXPECT_EQ(alias, list["data"][1]);
  EXPECT_EQ(alias["id"], "small");
  EXPECT_EQ(alias["root"], "org/tiny");
  client.Request("GET", "/v1/models/other");
  const TestClient::Response missing = client.ReadResponse();
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(Error(missing)["code"], "model_not_found");
  EXPECT_THAT(Error(missing)["message"].get<std::string>(), HasSubstr(R"(this server serves "org/tiny", "small".)"));
}

TEST_F(OpenAiServiceTest, ListsThePresetsWithWhatItMakesOfThem) {
  TestClient client(port());
  client.Request("GET", "/selection");
  const Json list = Json::parse(client.ReadResponse().body);
  EXPECT_TRUE(list["default"].is_string());
  EXPECT_TRUE(list["max_budget"].is_number());
  size_t served = 0;
  for (const Json& preset : list["presets"]) {
    EXPECT_TRUE(preset["description"].is_string());
    EXPECT_NE(preset["specification"].is_null(), preset["refused"].is_null()) << preset;
    served += preset["refused"].is_null();
    if (preset["preset"] == "dense") {
      EXPECT_TRUE(preset["refused"].is_null());
    }
    if (preset["preset"] == "lserve") {  // which heads stream is in a profile, and this server has none
      EXPECT_THAT(preset["refused"].get<std::string>(), HasSubstr("profile"));
    }
  }
  EXPECT_GT(served, 3u);
}

TEST_F(OpenAiServiceTest, AsksForATraceAndTellsIt) {
  TestClient client(port());
  client.Request("POST", "/v1/completions", R"({"prompt": "a", "stream": true, "winnow": {"trace": 8}})");
  const auto run = generation_.WaitForStart(0);
  EXPECT_EQ(run->input().trace_parts, 8u);
  v1::Token token;
  token.set_id('b');
  token.mutable_trace()->set_context_tokens(77);
  run->Delta(0, {token}, "b");
  client.ReadHead();
  const Json chunk = Json::parse(*client.ReadEvent());
  EXPECT_EQ(chunk["choices"][0]["winnow"]["trace"][0]["context_tokens"], 77);
  run->End(0);
  run->Done();
}

TEST_F(OpenAiServiceTest, AnswersUnderTheNameThatTheRequestUsed) {
  TestClient client(port());
  const char* bodies[] = {R"({"prompt": "a"})", R"({"prompt": "a", "model": "small"})"};
  const char* names[] = {"org/tiny", "small"};
  for (size_t i = 0; i < 2; ++i) {
    client.Request("POST", "/v1/completions", bodies[i]);
    const auto run = generation_.WaitForStart(i);
    run->End(0);
    run->Done();
    EXPECT_EQ(Json::parse(client.ReadResponse().body)["model"], names[i]);
  }
}

TEST_F(OpenAiServiceTest, ReportsHealthReadinessAndMetrics) {
  TestClient client(port());
  client.Request("GET", "/health");
  EXPECT_EQ(client.ReadResponse().status, 200);
  client.Request("GET", "/ping");
  EXPECT_EQ(client.ReadResponse().status, 200);
  client.Request("POST", "/ping");
  EXPECT_EQ(client.ReadResponse().status, 200);
  client.Request("GET", "/version");
  EXPECT_EQ(Json::parse(client.ReadResponse().body)["version"], std::string(Version()));
  client.Request("GET", "/ready");
  EXPECT_EQ(client.ReadResponse().status, 200);
  ready_ = false;
  client.Request("GET", "/health");
  EXPECT_EQ(client.ReadResponse().status, 200);
  client.Request("GET", "/ready");
  const TestClient::Response not_ready = client.ReadResponse();
  EXPECT_EQ(not_ready.status, 503);
  EXPECT_EQ(Json::parse(not_ready.body)["reason"], "no inference rank");
  client.Request("GET", "/metrics");
  const TestClient::Response metrics = client.ReadResponse();
  EXPECT_EQ(metrics.body, "winnow_up 1\n");
  EXPECT_THAT(metrics.Header("Content-Type"), StartsWith("text/plain; version=0.0.4"));
}

TEST_F(OpenAiServiceTest, ErrorsOfTheServerLookLikeOpenAis) {
  TestClient client(port());
  client.Request("GET", "/v2");
  const TestClient::Response missing = client.ReadResponse();
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(Error(missing)["type"], "invalid_request_error");
  client.Request("GET", "/v1/completions");
  EXPECT_EQ(client.ReadResponse().status, 405);
  client.Request("POST", "/v1/completions", "{\"prompt\":");
  const TestClient::Response bad = client.ReadResponse();
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(Error(bad)["code"], "invalid_json");
  EXPECT_THAT(Error(bad)["message"].get<std::string>(), HasSubstr("not valid JSON: parse error at line 1, column 11"));
  client.Request("POST", "/v1/completions", std::string("{\"prompt\":\"\xff\"}"));
  EXPECT_EQ(client.ReadResponse().status, 400);
  client.Request("POST", "/v1/completions", R"({"prompt":"a","top_p":7})");
  EXPECT_EQ(Error(client.ReadResponse())["param"], "top_p");
}

TEST_F(OpenAiServiceTest, CompletesPromptsAndSamplesInOrder) {
  TestClient client(port());
  client.Request("POST", "/v1/completions",
                 R"({"prompt": ["a", "bc"], "n": 2, "seed": 7, "max_tokens": 5, "stop": "!"})",
                 "x-request-id: req-1\r\n");
  const auto first = generation_.WaitForStart(0);
  const auto second = generation_.WaitForStart(1);
  EXPECT_EQ(first->input().request_id, "req-1-0");
  EXPECT_EQ(first->input().n, 2u);
  EXPECT_EQ(first->input().max_tokens, 5u);
  EXPECT_EQ(first->input().sampling.seed(), 7u);
  EXPECT_THAT(first->input().stop, ElementsAre("!"));
  EXPECT_THAT(second->input().prompt_token_ids, ElementsAre(FakeTextCodec::kBos, 'b', 'c'));
  // The later prompt and the later sample come first.
  second->Delta(1, "xy");
  second->Delta(0, "z");
  first->Delta(1, "u");
  first->Delta(0, "v");
  first->Delta(0, "w");
  for (const auto& run : {second, first}) {
    run->End(1, v1::FINISH_REASON_LENGTH);
    run->End(0, v1::FINISH_REASON_STOP, "!");
    run->Done();
  }
  const TestClient::Response response = client.ReadResponse();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.Header("x-request-id"), "req-1");
  const Json json = Json::parse(response.body);
  EXPECT_EQ(json["id"], "cmpl-req-1");
  ASSERT_EQ(json["choices"].size(), 4u);
  const char* texts[] = {"vw", "u", "z", "xy"};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], texts[i]);
    EXPECT_EQ(json["choices"][i]["finish_reason"], i % 2 == 0 ? "stop" : "length");
  }
  EXPECT_EQ(json["choices"][0]["stop_reason"], "!");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(json["usage"]["completion_tokens"], 6);
  first->WaitForDestruction();
  second->WaitForDestruction();
  EXPECT_EQ(first_tokens_, 4);
  EXPECT_EQ(gaps_, 2) << "the second token of xy, and w";
  EXPECT_THAT(Outcomes(), ElementsAre("completions stop"));
}

TEST_F(OpenAiServiceTest, AnswersWithToolCalls) {
  TestClient client(port());
  client.Request("POST", "/v1/chat/completions", std::string(kToolChat) + R"(, "n": 2})");
  const auto run = generation_.WaitForStart();
  run->Delta(0, R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)");
  run->Delta(1, "No. <tool_");
  run->End(0);
  run->End(1);
  run->Done();
  const Json choices = Json::parse(client.ReadResponse().body)["choices"];
  EXPECT_EQ(choices[0]["finish_reason"], "tool_calls");
  EXPECT_TRUE(choices[0]["message"]["content"].is_null());
  EXPECT_EQ(choices[0]["message"]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(choices[1]["finish_reason"], "stop");
  EXPECT_EQ(choices[1]["message"]["content"], "No. <tool_") << "what could have become a marker is told at the end";
}

TEST_F(OpenAiServiceTest, EchoesThePromptBeforeTheAnswer) {
  TestClient client(port());
  size_t starts = 0;
  for (const char* stream : {"false", "true"}) {
    client.Request(
        "POST", "/v1/completions",
        absl::StrCat(R"({"prompt": ["ab", "c"], "echo": true, "include_stop_str_in_output": true, "stream": )", stream,
                     "}"));
    for (const char* answer : {"!", "?"}) {
      const auto run = generation_.WaitForStart(starts++);
      EXPECT_TRUE(run->input().include_stop);
      run->Delta(0, answer);
      run->End(0);
      run->Done();
    }
    if (std::string_view(stream) == "false") {
      const Json choices = Json::parse(client.ReadResponse().body)["choices"];
      EXPECT_EQ(choices[0]["text"], "ab!");
      EXPECT_EQ(choices[1]["text"], "c?");
      continue;
    }
    std::string texts[2];
    client.ReadHead();
    for (auto event = client.ReadEvent(); event && *event != "[DONE]"; event = client.ReadEvent()) {
      const Json choice = Json::parse(*event)["choices"][0];
      texts[choice["index"].get<int>()] += choice["text"].get<std::string>();
    }
    EXPECT_EQ(texts[0], "ab!");
    EXPECT_EQ(texts[1], "c?");
  }
}

TEST_F(OpenAiServiceTest, EchoesThePromptWithItsLogProbabilities) {
  const std::string fields = R"("prompt": "abc", "add_special_tokens": false, "echo": true, "logprobs": 1)";
  const Json prompt_logprobs = Json::parse("[null, -1.0, -2.0]");
  TestClient client(port());
  client.Request("POST", "/v1/completions", "{" + fields + R"(, "max_tokens": 0, "prompt_logprobs": 1})");
  const auto whole = generation_.WaitForStart(0);
  EXPECT_EQ(whole->input().prompt_top_logprobs, 1u);
  whole->ScorePrompt();
  whole->Delta(0, "x");
  whole->End(0);
  whole->Done();
  const Json answer = Json::parse(client.ReadResponse().body);
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["text"], "abc");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["logprobs"]["tokens"].dump(), R"(["a","b","c"])");
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], prompt_logprobs);
  EXPECT_EQ(choice["logprobs"]["top_logprobs"].dump(), R"([null,{"e":-0.5},{"e":-0.5}])");
  EXPECT_EQ(choice["logprobs"]["text_offset"].dump(), "[0,1,2]");
  EXPECT_EQ(
      choice["prompt_logprobs"].dump(),
      R"([null,{"98":{"logprob":-1,"rank":2,"decoded_token":"b"},"101":{"logprob":-0.5,"rank":1,"decoded_token":"e"}},)"
      R"({"99":{"logprob":-2,"rank":2,"decoded_token":"c"},"101":{"logprob":-0.5,"rank":1,"decoded_token":"e"}}])");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);

  client.Request("POST", "/v1/completions", "{" + fields + R"(, "max_tokens": 1, "stream": true})");
  const auto stream = generation_.WaitForStart(1);
  stream->ScorePrompt();
  stream->Delta(0, "x");
  stream->End(0);
  stream->Done();
  client.ReadHead();
  const Json first = Json::parse(*client.ReadEvent())["choices"][0];
  EXPECT_EQ(first["text"], "abc");
  EXPECT_EQ(first["logprobs"]["token_logprobs"], prompt_logprobs);
  const Json second = Json::parse(*client.ReadEvent())["choices"][0];
  EXPECT_EQ(second["text"], "x");
  EXPECT_EQ(second["logprobs"]["text_offset"].dump(), "[3]");
}

TEST_F(OpenAiServiceTest, AnswersAsResponses) {
  TestClient client(port());
  const std::string body = R"({"model": "small", "input": "hi", "instructions": "Be brief.", "max_output_tokens": 9)";
  client.Request("POST", "/v1/responses", body + "}", "x-request-id: r1\r\n");
  const auto whole = generation_.WaitForStart(0);
  EXPECT_EQ(codec_.Decode(whole->input().prompt_token_ids, true), "system:Be brief.;user:hi;assistant:");
  EXPECT_EQ(whole->input().max_tokens, 9u);
  whole->Delta(0, "<think>so");
  whole->Delta(0, "</think>yes");
  whole->End(0, v1::FINISH_REASON_STOP);
  whole->Done();
  const Json answer = Json::parse(client.ReadResponse().body);
  EXPECT_EQ(answer["id"], "resp_r1");
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["model"], "small");
  EXPECT_EQ(answer["status"], "completed");
  EXPECT_EQ(answer["instructions"], "Be brief.");
  EXPECT_EQ(answer["store"], false);
  ASSERT_EQ(answer["output"].size(), 2u);
  EXPECT_EQ(answer["output"][0]["type"], "reasoning");
  EXPECT_EQ(answer["output"][0]["content"][0]["text"], "so");
  EXPECT_EQ(answer["output"][1]["type"], "message");
  EXPECT_EQ(answer["output"][1]["content"][0]["text"], "yes");
  EXPECT_EQ(answer["usage"]["output_tokens"], 20);
  EXPECT_GT(answer["usage"]["output_tokens_details"]["reasoning_tokens"], 0);

  client.Request("POST", "/v1/responses", body + R"(, "stream": true})");
  const auto stream = generation_.WaitForStart(1);
  stream->Delta(0, "ye");
  client.ReadHead();
  std::vector<Json> events;
  const auto read = [&] { events.push_back(Json::parse(*client.ReadEvent())); };
  for (int i = 0; i < 5; ++i) read();
  EXPECT_EQ(events[4]["type"], "response.output_text.delta");
  EXPECT_EQ(events[4]["delta"], "ye");
  EXPECT_EQ(events[0]["response"]["output"].size(), 0u);
  stream->Delta(0, "s");
  stream->End(0, v1::FINISH_REASON_LENGTH);
  stream->Done();
  for (int i = 0; i < 5; ++i) read();
  EXPECT_EQ(client.ReadEvent(), std::nullopt);
  std::vector<std::string> types;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["sequence_number"], i);
    types.push_back(events[i]["type"]);
  }
  EXPECT_THAT(types, ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                                 "response.content_part.added", "response.output_text.delta",
                                 "response.output_text.delta", "response.output_text.done",
                                 "response.content_part.done", "response.output_item.done", "response.incomplete"));
  EXPECT_EQ(events[6]["text"], "yes");
  EXPECT_EQ(events[9]["response"]["output"][0]["content"][0]["text"], "yes");
  EXPECT_EQ(events[9]["response"]["incomplete_details"]["reason"], "max_output_tokens");
}

TEST_F(OpenAiServiceTest, RefusalsHaveTheirStatus) {
  TestClient client(port());
  const struct {
    absl::Status status;
    int http_status;
    const char* retry_after;
  } cases[] = {{absl::ResourceExhaustedError("queue full"), 429, "1"},
               {absl::UnavailableError("no rank"), 503, "1"},
               {ExhaustedFor(std::chrono::milliseconds(2500), "rate"), 429, "3"},
               {absl::UnauthenticatedError("no key"), 401, ""},
               {absl::PermissionDeniedError("not yours"), 403, ""},
               {absl::InternalError("bug"), 500, ""}};
  for (const char* stream : {"true", "false"}) {
    for (const auto& c : cases) {
      generation_.RefuseWith(c.status);
      client.Request("POST", "/v1/completions", absl::StrCat(R"({"prompt": "a", "stream": )", stream, "}"));
      const TestClient::Response response = client.ReadResponse();
      EXPECT_EQ(response.status, c.http_status);
      EXPECT_EQ(response.Header("Retry-After"), c.retry_after);
      EXPECT_EQ(response.Header("WWW-Authenticate"), c.http_status == 401 ? "Bearer realm=\"winnow\"" : "");
      EXPECT_EQ(Error(response)["message"], std::string(c.status.message()));
    }
  }
}

TEST_F(OpenAiServiceTest, EveryRequestIsCountedOnceWithItsStatus) {
  TestClient client(port());
  client.Request("POST", "/v1/completions", R"({"prompt": 5})");
  EXPECT_EQ(client.ReadResponse().status, 400);
  client.Request("POST", "/v1/completions", R"({"prompt": "a"})", "x-request-timeout-ms: soon\r\n");
  EXPECT_EQ(client.ReadResponse().status, 400);
  client.Request("POST", "/v1/chat/completions", R"({"model": "other", "messages": []})");
  EXPECT_EQ(client.ReadResponse().status, 404);
  generation_.RefuseWith(absl::ResourceExhaustedError("queue full"));
  client.Request("POST", "/v1/completions", R"({"prompt": "a"})");
  EXPECT_EQ(client.ReadResponse().status, 429);
  generation_.RefuseWith(absl::OkStatus());
  client.Request("POST", "/v1/completions", R"({"prompt": "a", "stream": true})");
  const auto run = generation_.WaitForStart();
  run->Delta(0, "x");
  run->Fail(absl::UnavailableError("rank lost"));
  client.ReadHead();
  while (client.ReadEvent()) {
  }
  run->WaitForDestruction();
  Outcomes();
  EXPECT_THAT(answers_, ElementsAre(400, 400, 404, 429, 503));
}

TEST_F(OpenAiServiceTest, TokenizesLongTextsOnAWorker) {
  TestClient client(port());
  client.Request("POST", "/tokenize",
                 R"({"add_special_tokens": false, "prompt": ")" + std::string(200'000, 'x') + "\"}");
  EXPECT_EQ(Json::parse(client.ReadResponse().body)["count"], 200'000);
  client.Request("POST", "/v1/completions", R"({"prompt": ")" + std::string(100'000, 'x') + "\"}");
  EXPECT_EQ(Error(client.ReadResponse())["code"], "context_length_exceeded");
  client.Request("POST", "/v1/completions", R"({"prompt": ")" + std::string(50'000, 'x') + "\"}");
  const auto run = generation_.WaitForStart();
  EXPECT_EQ(run->input().prompt_token_ids.size(), 50'001u);
  run->Delta(0, "y");
  run->End(0);
  run->Done();
  EXPECT_EQ(Json::parse(client.ReadResponse().body)["choices"][0]["text"], "y");
}

}  // namespace
}  // namespace winnow
