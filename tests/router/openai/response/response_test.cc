#include <gtest/gtest.h>

#include <limits>

#include "router/openai/json/json_document.h"
#include "router/openai/response/logprobs.h"
#include "router/openai/response/response_format.h"
#include "tests/router/openai/fake_text_codec.h"

namespace winnow {
namespace {

const FakeTextCodec kCodec;

v1::Token Token(uint32_t id, float logprob, std::vector<std::pair<uint32_t, float>> top = {}) {
  v1::Token token;
  token.set_id(id);
  token.set_logprob(logprob);
  for (const auto& [top_id, top_logprob] : top) {
    v1::TokenLogprob* entry = token.add_top_logprobs();
    entry->set_id(top_id);
    entry->set_logprob(top_logprob);
  }
  return token;
}

ResponseIdentity Identity(const char* id) {
  ResponseIdentity identity;
  identity.id = id;
  identity.created_unix_s = 1700000000;
  identity.model = "m";
  return identity;
}

// Of what is one event, or none.
std::string Data(const StreamEvents& events) {
  EXPECT_LE(events.size(), 1u);
  return events.empty() ? "" : events[0].data;
}

UsageTotals SomeUsage() {
  UsageTotals usage;
  usage.SetSelection("winnow,budget=512");
  usage.Add(GenerationUsage{.prompt_tokens = 3, .completion_tokens = 2});
  usage.Add(v1::SelectionStats());
  return usage;
}

constexpr char kUsage[] =
    R"("usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":0},)"
    R"("winnow":{"selection":"winnow,budget=512","captured_mass_mean":null,"captured_mass_p5":null,)"
    R"("captured_mass_before_mean":null,"captured_mass_before_p5":null,"captured_mass_is_bound":false,)"
    R"("corrections":{"missed_top_k":0,"widened":0},"correction_rows":0,"hit_ratio":null,"streamed_rows":0,"streamed_bytes":0,)"
    R"("context_tokens":0,"resident_rows":0,"reattach_count":0,"preempted_count":0,"not_identical":false}}})";

TEST(CompletionFormat, WholeResponse) {
  const auto format = MakeCompletionFormat(Identity("cmpl-1"), &kCodec);
  const std::vector<ChoiceResult> choices = {
      {.message = {.content = "a\n"}, .tokens = {}, .end = {.reason = v1::FINISH_REASON_LENGTH}},
      {.message = {.content = "b"}, .tokens = {}, .end = {.reason = v1::FINISH_REASON_STOP, .stop_match = "END"}}};
  EXPECT_EQ(format->Whole(choices, SomeUsage()),
            std::string(R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[)"
                        R"({"index":0,"text":"a\n","logprobs":null,"finish_reason":"length","stop_reason":null},)"
                        R"({"index":1,"text":"b","logprobs":null,"finish_reason":"stop","stop_reason":"END"}],)") +
                kUsage);
}

TEST(CompletionFormat, Chunks) {
  ResponseIdentity identity = Identity("cmpl-1");
  identity.top_logprobs = 1;
  identity.return_token_ids = true;
  identity.include_usage = true;
  const auto format = MakeCompletionFormat(identity, &kCodec);
  EXPECT_EQ(Data(format->FirstChunk(0, {})), "");
  size_t offset = 0;
  const ChoiceDelta first{.message = {.content = "hlo"}, .tokens = {Token('h', -0.5f, {{'h', -0.5f}}), Token(257, -1)}};
  EXPECT_EQ(
      Data(format->DeltaChunk(2, first, {}, &offset)),
      R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[{"index":2,"text":"hlo","logprobs":)"
      R"({"tokens":["h","lo"],"token_logprobs":[-0.5,-1],"top_logprobs":[{"h":-0.5},{}],"text_offset":[0,1]},)"
      R"("finish_reason":null,"stop_reason":null,"token_ids":[104,257]}],"usage":null})");
  EXPECT_EQ(offset, 3u) << "the next delta's offsets go on from here";
  EXPECT_EQ(
      Data(format->EndChunk(2, {.reason = v1::FINISH_REASON_STOP}, {})),
      R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[{"index":2,"text":"","logprobs":null,)"
      R"("finish_reason":"stop","stop_reason":null,"token_ids":[]}],"usage":null})");
  const StreamEvents end = format->End(SomeUsage());
  ASSERT_EQ(end.size(), 2u);
  EXPECT_EQ(end[0].data,
            std::string(R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[],)") +
                kUsage);
  EXPECT_EQ(end[1].data, "[DONE]");
}

v1::Token TracedToken(bool has_mass) {
  v1::Token token = Token('h', -1);
  v1::SelectionTrace* trace = token.mutable_trace();
  trace->set_token_index(4);
  trace->set_context_tokens(100);
  trace->set_lists(2);
  trace->mutable_attended()->Add(3);
  trace->mutable_attended()->Add(200);
  trace->mutable_resident()->Add(50);
  trace->mutable_moved()->Add(0);
  if (has_mass) {
    trace->set_captured_mass(0.5f);
    trace->set_mass_token_index(3);
  }
  return token;
}

TEST(SelectionTrace, StandsInTheChoiceWhoseTokensHaveOne) {
  size_t offset = 0;
  const ChoiceDelta delta{.message = {.content = "h"},
                          .tokens = {Token('a', -1), TracedToken(true), TracedToken(false)}};
  const std::string measured =
      R"({"token_index":4,"context_tokens":100,"lists":2,"attended":[3,200],"resident":[50],"moved":[0],)"
      R"("captured_mass":0.5,"mass_token_index":3})";
  const std::string unmeasured =
      R"({"token_index":4,"context_tokens":100,"lists":2,"attended":[3,200],"resident":[50],"moved":[0]})";
  const std::string expected = R"("winnow":{"trace":[)" + measured + "," + unmeasured + "]}}]";
  for (const auto& format : {MakeChatFormat(Identity("1"), &kCodec), MakeCompletionFormat(Identity("1"), &kCodec)}) {
    const std::string chunk = Data(format->DeltaChunk(0, delta, {}, &offset));
    EXPECT_NE(chunk.find(expected), std::string::npos) << chunk;
    const std::string whole = format->Whole({{.message = {}, .tokens = delta.tokens, .end = {}}}, SomeUsage());
    EXPECT_NE(whole.find(expected), std::string::npos) << whole;
    const std::string without =
        Data(format->DeltaChunk(0, {.message = {.content = "a"}, .tokens = {Token('a', -1)}}, {}, &offset));
    EXPECT_EQ(without.find("winnow"), std::string::npos) << without;
  }
}

TEST(ChatFormat, WholeResponse) {
  ResponseIdentity identity = Identity("chatcmpl-1");
  identity.top_logprobs = 2;
  const auto format = MakeChatFormat(identity, &kCodec);
  const std::vector<ChoiceResult> choices = {{.message = {.content = "h\xc3\xa4"},
                                              .tokens = {Token(0xc3, -0.25f, {{0xc3, -0.25f}, {'a', -2}, {'b', -3}})},
                                              .end = {.reason = v1::FINISH_REASON_STOP}}};
  EXPECT_EQ(
      format->Whole(choices, SomeUsage()),
      std::string(
          R"({"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,)"
          R"("message":{"role":"assistant","content":"hä","refusal":null},)"
          R"("logprobs":{"content":[{"token":"bytes:\\xc3","bytes":[195],"logprob":-0.25,"top_logprobs":[)"
          R"({"token":"bytes:\\xc3","bytes":[195],"logprob":-0.25},{"token":"a","bytes":[97],"logprob":-2}]}],"refusal":null},)"
          R"("finish_reason":"stop","stop_reason":null}],)") +
          kUsage);
}

TEST(ChatFormat, Chunks) {
  const auto format = MakeChatFormat(Identity("chatcmpl-1"), &kCodec);
  const std::string head =
      R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[)";
  EXPECT_EQ(
      Data(format->FirstChunk(1, {})),
      head +
          R"({"index":1,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null,"stop_reason":null}]})");
  EXPECT_EQ(Data(format->DeltaChunk(1, {.message = {.content = "hi"}, .tokens = {}}, {}, nullptr)),
            head + R"({"index":1,"delta":{"content":"hi"},"logprobs":null,"finish_reason":null,"stop_reason":null}]})");
  EXPECT_EQ(Data(format->EndChunk(1, {.reason = v1::FINISH_REASON_LENGTH}, {})),
            head + R"({"index":1,"delta":{},"logprobs":null,"finish_reason":"length","stop_reason":null}]})");
}

TEST(ChatFormat, WritesReasoningAndToolCalls) {
  const auto format = MakeChatFormat(Identity("chatcmpl-1"), &kCodec);
  const MessageDelta message{.reasoning = "hm",
                             .content = "",
                             .tool_calls = {{.index = 0, .id = "call_1", .name = "f", .arguments = "{\"a\":1}"},
                                            {.index = 1, .id = "call_2", .name = "g", .arguments = "{}"}}};
  const std::vector<ChoiceResult> choices = {
      {.message = message, .tokens = {}, .end = {.reason = v1::FINISH_REASON_STOP, .called_tools = true}}};
  const Json whole = Json::parse(format->Whole(choices, SomeUsage()))["choices"][0];
  EXPECT_EQ(whole["finish_reason"], "tool_calls");
  EXPECT_TRUE(whole["message"]["content"].is_null());
  EXPECT_EQ(whole["message"]["reasoning_content"], "hm");
  EXPECT_EQ(whole["message"]["tool_calls"].dump(),
            R"([{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},)"
            R"({"id":"call_2","type":"function","function":{"name":"g","arguments":"{}"}}])");

  const ChoiceDelta piece{.message = {.tool_calls = {{.index = 1, .arguments = "{\"a\""}}}, .tokens = {}};
  EXPECT_EQ(Json::parse(Data(format->DeltaChunk(0, piece, {}, nullptr)))["choices"][0]["delta"].dump(),
            R"({"tool_calls":[{"index":1,"function":{"arguments":"{\"a\""}}]})");
  const std::string end = Data(format->EndChunk(0, {.reason = v1::FINISH_REASON_LENGTH, .called_tools = true}, {}));
  EXPECT_EQ(Json::parse(end)["choices"][0]["finish_reason"], "length") << "the call may be incomplete";
}

TEST(Chunks, CarryTheCountsSoFarWhenAsked) {
  for (const auto& format : {MakeChatFormat(Identity("1"), &kCodec), MakeCompletionFormat(Identity("1"), &kCodec)}) {
    size_t offset = 0;
    const ChoiceDelta delta{.message = {.content = "a"}, .tokens = {}};
    const Json chunk = Json::parse(Data(format->DeltaChunk(0, delta, ChunkUsage{3, 2}, &offset)));
    EXPECT_EQ(chunk["usage"].dump(), R"({"prompt_tokens":3,"completion_tokens":2,"total_tokens":5})");
  }
}

TEST(Logprobs, CountCharactersNotBytes) {
  // "ä" comes as two tokens; the second begins no character.
  const std::vector<v1::Token> tokens = {Token('a', -1), Token(0xc3, -1), Token(0xa4, -1), Token('b', -1)};
  JsonWriter json;
  size_t offset = 10;
  WriteCompletionLogprobs(tokens, {}, kCodec, &offset, &json);
  const Json logprobs = Json::parse(json.Take());
  EXPECT_EQ(logprobs["text_offset"], Json({10, 11, 12, 12}));
  EXPECT_EQ(logprobs["tokens"], Json({"a", "bytes:\\xc3", "bytes:\\xa4", "b"}));
  EXPECT_TRUE(logprobs["top_logprobs"].is_null());
  EXPECT_EQ(offset, 13u);
}

TEST(Logprobs, NameTokensByIdWhenAsked) {
  const std::vector<v1::Token> tokens = {Token('a', -1, {{'a', -1}, {257, -2}})};
  JsonWriter completion, chat;
  size_t offset = 0;
  WriteCompletionLogprobs(tokens, {.top = 2, .tokens_as_ids = true}, kCodec, &offset, &completion);
  const Json map = Json::parse(completion.Take());
  EXPECT_EQ(map["tokens"], Json({"token_id:97"}));
  EXPECT_EQ(map["top_logprobs"][0].dump(), R"({"token_id:97":-1,"token_id:257":-2})");
  WriteChatLogprobs(tokens, {.top = 1, .tokens_as_ids = true}, kCodec, &chat);
  const Json token = Json::parse(chat.Take())["content"][0];
  EXPECT_EQ(token["token"], "token_id:97");
  EXPECT_EQ(token["bytes"], Json({97})) << "these stay the token's";
}

TEST(Logprobs, StayFiniteAndUnambiguous) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  v1::Token unmeasured;
  unmeasured.set_id('x');
  const std::vector<v1::Token> tokens = {Token('a', -kInfinity, {{'a', -1}, {'a', -2}, {'b', -kInfinity}, {'c', -4}}),
                                         unmeasured};
  JsonWriter json;
  size_t offset = 0;
  WriteCompletionLogprobs(tokens, {.top = 2}, kCodec, &offset, &json);
  EXPECT_EQ(
      json.Take(),
      R"({"tokens":["a","x"],"token_logprobs":[-9999,null],"top_logprobs":[{"a":-1,"b":-9999},null],"text_offset":[0,1]})");
}

TEST(UsageTotals, AggregatesOutputs) {
  UsageTotals usage;
  usage.Add(GenerationUsage{.prompt_tokens = 10, .completion_tokens = 4});
  usage.Add(GenerationUsage{.prompt_tokens = 20, .completion_tokens = 6});
  v1::SelectionStats first;
  first.set_captured_mass_mean(0.5f);
  first.set_captured_mass_p5(0.25f);
  first.set_decode_steps(3);
  first.set_selection_lookups(10);
  first.set_selection_hits(5);
  first.set_streamed_rows(5);
  first.set_streamed_bytes(2560);
  first.set_context_tokens(14);
  first.set_resident_rows(8);
  first.set_preempted_count(1);
  v1::SelectionStats second;
  second.set_captured_mass_mean(1.0f);
  second.set_captured_mass_p5(0.75f);
  second.set_decode_steps(1);
  second.set_selection_lookups(10);
  second.set_selection_hits(10);
  second.set_context_tokens(12);
  second.set_resident_rows(99);
  second.set_reattach_count(2);
  second.set_preempted_count(4);
  second.set_not_identical(true);
  second.set_captured_mass_before_mean(0.75f);
  second.set_captured_mass_before_p5(0.5f);
  second.set_captured_mass_is_bound(true);
  second.set_missed_top_k_corrections(3);
  second.set_widened_corrections(2);
  second.set_correction_rows(700);
  v1::SelectionStats unmeasured;
  for (const auto& stats : {first, second, unmeasured}) usage.Add(stats);
  JsonWriter json;
  usage.Write(&json);
  EXPECT_EQ(
      json.Take(),
      R"({"prompt_tokens":30,"completion_tokens":10,"total_tokens":40,"prompt_tokens_details":{"cached_tokens":0},"winnow":{)"
      R"("selection":"","captured_mass_mean":0.625,"captured_mass_p5":0.25,)"
      R"("captured_mass_before_mean":0.75,"captured_mass_before_p5":0.5,"captured_mass_is_bound":true,)"
      R"("corrections":{"missed_top_k":3,"widened":2},"correction_rows":700,"hit_ratio":0.75,"streamed_rows":5,"streamed_bytes":2560,)"
      R"("context_tokens":14,"resident_rows":8,"reattach_count":2,"preempted_count":5,"not_identical":true}})");
}

TEST(Usage, WithoutStatisticsTheyAreNullAndNotZero) {
  UsageTotals usage;
  usage.SetSelection("quest");
  usage.Add(GenerationUsage{.prompt_tokens = 3, .completion_tokens = 2, .cached_prompt_tokens = 1});
  JsonWriter json;
  usage.Write(&json);
  EXPECT_EQ(
      json.Take(),
      R"({"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1},"winnow":{)"
      R"("selection":"quest","captured_mass_mean":null,"captured_mass_p5":null,"captured_mass_before_mean":null,)"
      R"("captured_mass_before_p5":null,"captured_mass_is_bound":null,"corrections":{"missed_top_k":null,"widened":null},)"
      R"("correction_rows":null,"hit_ratio":null,"streamed_rows":null,"streamed_bytes":null,"context_tokens":null,)"
      R"("resident_rows":null,"reattach_count":null,"preempted_count":null,"not_identical":null}})");
}

}  // namespace
}  // namespace winnow
