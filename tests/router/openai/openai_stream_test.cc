#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/router/openai/openai_service_fixture.h"

namespace winnow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using GenerationRun = ScriptedGeneration::Run;

TEST_F(OpenAiServiceTest, TellsHowFarThePromptsAre) {
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    const bool chat = std::string_view(path).find("chat") != std::string_view::npos;
    TestClient client(port());
    client.Request("POST", path,
                   absl::StrCat(R"({"stream": true, "winnow": {"prompt_progress": true}, )",
                                chat ? R"("messages": [{"role": "user", "content": "x"}]})"
                                     : R"("prompt": ["abc", "defg"], "max_tokens": 5})"));
    const auto run = generation_.WaitForStart(chat ? 2 : 1);
    EXPECT_TRUE(run->input().prompt_progress);
    run->PromptAt(3, 1);
    client.ReadHead();
    const Json chunk = Json::parse(*client.ReadEvent());
    EXPECT_TRUE(chunk["choices"].empty());
    EXPECT_EQ(chunk["object"], chat ? "chat.completion.chunk" : "text_completion");
    const Json progress = chunk["winnow"]["prompt_progress"];
    EXPECT_EQ(progress["prompt_index"], chat ? 0 : 1);
    EXPECT_EQ(progress["prompt_tokens"], run->input().prompt_token_ids.size());
    EXPECT_EQ(progress["computed_tokens"], 3);
    EXPECT_EQ(progress["cached_tokens"], 1);
  }
  TestClient client(port());
  client.Request("POST", "/v1/completions", R"({"prompt": "a", "winnow": {"prompt_progress": true}})");
  const TestClient::Response whole = client.ReadResponse();
  EXPECT_EQ(whole.status, 400);
  EXPECT_EQ(Error(whole)["param"], "winnow.prompt_progress");
}

TEST_F(OpenAiServiceTest, StreamsAChat) {
  TestClient client(port());
  client.Request(
      "POST", "/v1/chat/completions",
      R"({"messages": [{"role": "user", "content": "hi"}], "stream": true, "stream_options": {"include_usage": true},
                     "return_token_ids": true})");
  const auto run = generation_.WaitForStart();
  EXPECT_EQ(codec_.Decode(run->input().prompt_token_ids, false), "user:hi;assistant:");
  run->Delta(0, "h");
  EXPECT_THAT(client.ReadHead(), HasSubstr("text/event-stream"));
  const Json role = Json::parse(client.ReadEvent().value());
  EXPECT_EQ(role["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_TRUE(role["usage"].is_null());
  const Json delta = Json::parse(client.ReadEvent().value());
  EXPECT_EQ(delta["object"], "chat.completion.chunk");
  EXPECT_EQ(delta["choices"][0]["delta"], (Json{{"content", "h"}}));
  EXPECT_EQ(delta["choices"][0]["token_ids"], Json({'h' + 0}));
  EXPECT_EQ(delta["id"], role["id"]);
  // Half a character: tokens without text still tell their ids.
  std::vector<v1::Token> half(1);
  half[0].set_id(0xc3);
  run->Delta(0, half, "");
  EXPECT_EQ(Json::parse(client.ReadEvent().value())["choices"][0]["token_ids"], Json({0xc3}));
  half[0].set_id(0xa4);
  run->Delta(0, half, "ä");
  EXPECT_EQ(Json::parse(client.ReadEvent().value())["choices"][0]["delta"]["content"], "ä");
  run->End(0, v1::FINISH_REASON_LENGTH);
  run->Done();
  const Json end = Json::parse(client.ReadEvent().value());
  EXPECT_EQ(end["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(end["choices"][0]["delta"], Json::object());
  const Json usage = Json::parse(client.ReadEvent().value());
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 3);
  EXPECT_EQ(client.ReadEvent(), "[DONE]");
  EXPECT_EQ(client.ReadEvent(), std::nullopt);
  // The connection is good for another request.
  client.Request("GET", "/health");
  EXPECT_EQ(client.ReadResponse().status, 200);
}

TEST_F(OpenAiServiceTest, StreamsReasoningAndToolCallsAsTheyCome) {
  TestClient client(port());
  client.Request("POST", "/v1/chat/completions",
                 std::string(kToolChat) + R"(, "stream": true, "stream_options": {"continuous_usage_stats": true}})");
  const auto run = generation_.WaitForStart();
  EXPECT_THAT(run->input().decoding.shown_special, ElementsAre(258u)) << "the marker is to be decoded";
  EXPECT_TRUE(run->input().decoding.skip_special_tokens);
  for (const char* text :
       {"<think>hm</th", "ink>\n", "<tool_call>{\"name\": \"f\", \"argu", "ments\": {\"a\": ", "1}}", "</tool_call>"}) {
    run->Delta(0, text);
  }
  run->End(0);
  run->Done();
  client.ReadHead();
  std::vector<Json> deltas;
  Json end;
  for (auto event = client.ReadEvent(); event && *event != "[DONE]"; event = client.ReadEvent()) {
    end = Json::parse(*event);
    deltas.push_back(end["choices"][0]["delta"]);
  }
  ASSERT_EQ(deltas.size(), 5u) << "role, reasoning, two pieces of the call, and the end";
  EXPECT_EQ(deltas[1], (Json{{"reasoning_content", "hm"}}));
  const Json first = deltas[2]["tool_calls"][0];
  EXPECT_EQ(first["index"], 0);
  EXPECT_EQ(first["type"], "function");
  EXPECT_THAT(first["id"].get<std::string>(), StartsWith("call_"));
  EXPECT_EQ(first["function"], (Json{{"name", "f"}, {"arguments", "{\"a\": "}}));
  EXPECT_EQ(deltas[3].dump(), R"({"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]})");
  EXPECT_EQ(deltas[4], Json::object());
  EXPECT_EQ(end["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(end["usage"]["completion_tokens"], 77);
}

TEST_F(OpenAiServiceTest, StreamsCompletionsWithoutIdsOrUsageUnlessAsked) {
  TestClient client(port());
  client.Request("POST", "/v1/completions", R"({"prompt": "a", "stream": true})");
  const auto run = generation_.WaitForStart();
  run->Delta(0, "");
  run->Delta(0, "ok");
  run->End(0);
  run->Done();
  client.ReadHead();
  const Json delta = Json::parse(client.ReadEvent().value());
  EXPECT_EQ(delta["choices"][0]["text"], "ok") << "a delta that says nothing is not sent";
  EXPECT_FALSE(delta.contains("usage"));
  EXPECT_FALSE(delta["choices"][0].contains("token_ids"));
  EXPECT_EQ(Json::parse(client.ReadEvent().value())["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(client.ReadEvent(), "[DONE]");
}

TEST_F(OpenAiServiceTest, AFailureOfAResponsesStreamIsItsLastEvent) {
  TestClient client(port());
  client.Request("POST", "/v1/responses", R"({"input": "hi", "stream": true})");
  const auto run = generation_.WaitForStart();
  run->Delta(0, "y");
  run->Fail(absl::UnavailableError("the rank is gone"));
  client.ReadHead();
  Json last;
  while (const std::optional<std::string> event = client.ReadEvent()) last = Json::parse(*event);
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["error"]["message"], "the rank is gone");
}

TEST_F(OpenAiServiceTest, AQuietStreamSendsComments) {
  StartServer({}, {.stream_keep_alive = std::chrono::milliseconds(20)});
  TestClient client(port());
  client.Request("POST", "/v1/completions", R"({"prompt": "a", "stream": true})");
  const auto run = generation_.WaitForStart();
  client.ReadHead();
  EXPECT_THAT(client.ReadChunk(), StartsWith(": waiting\n\n")) << "before the first token";
  run->Delta(0, "x");
  std::string chunks;
  while (chunks.find("waiting", chunks.find("\"x\"")) == chunks.npos) chunks += client.ReadChunk();
  run->End(0);
  run->Done();
  while (chunks.find("[DONE]") == chunks.npos) chunks += client.ReadChunk();
}

TEST_F(OpenAiServiceTest, AFailureBeforeTheFirstTokenIsAStatus) {
  TestClient client(port());
  client.Request("POST", "/v1/completions", R"({"prompt": ["a", "b"], "stream": true})");
  generation_.WaitForStart(1)->Fail(absl::DeadlineExceededError("too late"));
  const TestClient::Response response = client.ReadResponse();
  EXPECT_EQ(response.status, 504);
  EXPECT_EQ(Error(response)["code"], "timeout");
  generation_.WaitForStart(0)->WaitForDestruction();
  generation_.WaitForStart(1)->WaitForDestruction();
}

TEST_F(OpenAiServiceTest, AFailureDuringAStreamIsItsLastEvent) {
  TestClient client(port());
  client.Request("POST", "/v1/completions", R"({"prompt": "a", "stream": true})");
  const auto run = generation_.WaitForStart();
  run->Delta(0, "x");
  run->Fail(absl::UnavailableError("rank lost"));
  client.ReadHead();
  EXPECT_EQ(Json::parse(client.ReadEvent().value())["choices"][0]["text"], "x");
  EXPECT_EQ(Json::parse(client.ReadEvent().value())["error"]["message"], "rank lost");
  EXPECT_EQ(client.ReadEvent(), std::nullopt) << "no [DONE]";
  run->WaitForDestruction();
  EXPECT_THAT(Outcomes(), ElementsAre("completions error"));
}

TEST_F(OpenAiServiceTest, ADisconnectCancelsAtOnce) {
  size_t starts = 0;
  for (const char* stream : {"false", "true"}) {
    for (const bool after_a_token : {false, true}) {
      TestClient client(port());
      client.Request("POST", "/v1/completions", absl::StrCat(R"({"prompt": ["a", "b"], "stream": )", stream, "}"));
      const auto first = generation_.WaitForStart(starts++);
      const auto second = generation_.WaitForStart(starts++);
      if (after_a_token) second->Delta(0, "x");
      EXPECT_FALSE(first->destroyed());
      client.Close();
      first->WaitForDestruction();
      second->WaitForDestruction();
      second->Delta(0, "nobody hears this");
    }
  }
  EXPECT_THAT(Outcomes(), ElementsAre("completions cancelled", "completions cancelled", "completions cancelled",
                                      "completions cancelled"));
  EXPECT_THAT(answers_, ElementsAre(499, 499, 499, 499));
}

TEST_F(OpenAiServiceTest, ASlowReaderIsCancelled) {
  StartServer({.max_stream_buffer_bytes = 100'000});
  TestClient client(port(), /*receive_buffer_bytes=*/4096);
  client.Request("POST", "/v1/completions", R"({"prompt": "a", "stream": true})");
  const auto run = generation_.WaitForStart();
  size_t sent = 0;
  while (!run->destroyed() && sent < (1u << 30)) {
    run->Delta(0, {}, std::string(10'000, 'x'));
    sent += 10'000;
  }
  run->WaitForDestruction();
}

TEST_F(OpenAiServiceTest, DeadlinesComeFromTheHeader) {
  TestClient client(port());
  const auto left_s = [](const GenerationRun& run) {
    return std::chrono::duration_cast<std::chrono::seconds>(run.input().deadline - std::chrono::system_clock::now())
        .count();
  };
  client.Request("POST", "/v1/completions", R"({"prompt": "a"})", "x-request-timeout-ms: 100000\r\n");
  const auto run = generation_.WaitForStart(0);
  EXPECT_LE(left_s(*run), 100);
  run->End(0);
  run->Done();
  client.ReadResponse();
  client.Request("POST", "/v1/completions", R"({"prompt": "a"})");
  const auto second = generation_.WaitForStart(1);
  EXPECT_LE(left_s(*second), 600);
  EXPECT_GT(left_s(*second), 100);
  second->End(0);
  second->Done();
  client.ReadResponse();
  for (const char* bad : {"0", "-1", "soon", "1e3"}) {
    client.Request("POST", "/v1/completions", R"({"prompt": "a"})",
                   absl::StrCat("x-request-timeout-ms: ", bad, "\r\n"));
    EXPECT_EQ(Error(client.ReadResponse())["param"], "x-request-timeout-ms");
  }
}

TEST_F(OpenAiServiceTest, StoppingCancelsWhatDoesNotFinish) {
  TestClient client(port());
  client.Request("POST", "/v1/completions", R"({"prompt": "a", "stream": true})");
  const auto run = generation_.WaitForStart();
  run->Delta(0, "x");
  client.ReadHead();
  server_->Stop(std::chrono::milliseconds(1));
  EXPECT_TRUE(run->destroyed());
}

TEST_F(OpenAiServiceTest, HoldsManyStreamsAtOnce) {
  constexpr size_t kStreams = 500;
  std::vector<std::unique_ptr<TestClient>> clients;
  for (size_t i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<TestClient>(port()));
    clients.back()->Request("POST", "/v1/completions",
                            absl::StrCat(R"({"prompt": [)", i % 200 + 1, R"(], "stream": true})"));
  }
  for (size_t i = 0; i < kStreams; ++i) generation_.WaitForStart(i);
  for (int token = 0; token < 5; ++token) {
    for (size_t i = 0; i < kStreams; ++i) {
      const auto run = generation_.WaitForStart(i);
      run->Delta(0, absl::StrCat(run->input().prompt_token_ids[0], ","));
    }
  }
  // Every third client leaves; the others are served to the end.
  for (size_t i = 0; i < kStreams; i += 3) clients[i].reset();
  for (size_t i = 0; i < kStreams; ++i) {
    const auto run = generation_.WaitForStart(i);
    run->End(0);
    run->Done();
    run->WaitForDestruction();
  }
  for (size_t i = 0; i < kStreams; ++i) {
    if (!clients[i]) continue;
    std::string text;
    clients[i]->ReadHead();
    for (auto event = clients[i]->ReadEvent(); event && *event != "[DONE]"; event = clients[i]->ReadEvent()) {
      text += Json::parse(*event)["choices"][0]["text"].get<std::string>();
    }
    std::string expected;
    for (int token = 0; token < 5; ++token) absl::StrAppend(&expected, i % 200 + 1, ",");
    EXPECT_EQ(text, expected) << i;
  }
}

}  // namespace
}  // namespace winnow
