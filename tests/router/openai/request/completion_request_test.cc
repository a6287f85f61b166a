#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "router/openai/json/api_error.h"
#include "tests/router/openai/request/parsed_request.h"

namespace winnow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CompletionRequest, HasOpenAisDefaults) {
  const GenerationRequest request = *ParseCompletion(R"({"prompt": "hi"})");
  ASSERT_EQ(request.prompts.size(), 1u);
  EXPECT_THAT(request.prompts[0].token_ids, ElementsAre(FakeTextCodec::kBos, 'h', 'i'));
  EXPECT_EQ(request.prompts[0].max_tokens, 16u);
  EXPECT_EQ(request.fields.n, 1u);
  EXPECT_FALSE(request.fields.stream);
  EXPECT_FALSE(request.top_logprobs.has_value());
  EXPECT_EQ(request.fields.sampling.ByteSizeLong(), 0u) << "nothing is set that was not asked for";
  EXPECT_EQ(request.fields.selection, SelectionSpec());
  EXPECT_EQ(request.fields.priority, 0);
  EXPECT_EQ(request.fields.trace_parts, 0u);
}

TEST(CompletionRequest, ReadsEveryField) {
  const GenerationRequest request = *ParseCompletion(With(R"(
      "model": "org/tiny", "max_tokens": 7, "temperature": 0, "top_p": 0.5, "top_k": 20, "min_p": 0.1, "seed": -1,
      "stop": ["\n", "end"], "n": 3, "best_of": 3, "logprobs": 5, "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true},
      "ignore_eos": true, "presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 1.5, "logit_bias": {"5": -100, "299": 1.5},
      "stop_token_ids": [1, 2], "echo": false, "user": "u", "metadata": {"a": 1}, "return_token_ids": true,
      "add_special_tokens": false, "winnow": {"selection": "exact-token", "budget": 512, "min_captured_mass": 0.95, "priority": -100, "trace": 64})"));
  const CommonFields& fields = request.fields;
  EXPECT_EQ(fields.priority, -100);
  EXPECT_EQ(fields.trace_parts, 64u);
  EXPECT_THAT(request.prompts[0].token_ids, ElementsAre('h', 'i'));
  EXPECT_EQ(request.prompts[0].max_tokens, 7u);
  EXPECT_TRUE(fields.sampling.has_temperature());
  EXPECT_EQ(fields.sampling.temperature(), 0.0f);
  EXPECT_EQ(fields.sampling.top_p(), 0.5f);
  EXPECT_EQ(fields.sampling.top_k(), 20u);
  EXPECT_EQ(fields.sampling.min_p(), 0.1f);
  EXPECT_EQ(fields.sampling.seed(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(fields.sampling.presence_penalty(), -2.0f);
  EXPECT_EQ(fields.sampling.frequency_penalty(), 2.0f);
  EXPECT_EQ(fields.sampling.repetition_penalty(), 1.5f);
  ASSERT_EQ(fields.sampling.logit_bias_size(), 2);
  EXPECT_THAT(fields.stop, ElementsAre("\n", "end"));
  EXPECT_THAT(fields.stop_token_ids, ElementsAre(1u, 2u));
  EXPECT_EQ(fields.n, 3u);
  EXPECT_EQ(request.top_logprobs, 5u);
  EXPECT_TRUE(fields.stream && fields.include_usage && fields.ignore_eos && fields.return_token_ids);
  EXPECT_EQ(fields.selection.preset, "exact-token");
  EXPECT_EQ(fields.selection.predictor, Predictor::kExact);
  EXPECT_EQ(fields.selection.budget_tokens, 512u);
}

TEST(CompletionRequest, ReadsWhatTheTextShows) {
  const GenerationRequest request = *ParseCompletion(With(R"(
      "skip_special_tokens": false, "include_stop_str_in_output": true, "return_tokens_as_token_ids": true, "echo": true)"));
  EXPECT_FALSE(request.fields.skip_special_tokens);
  EXPECT_TRUE(request.fields.include_stop && request.fields.tokens_as_ids);
  EXPECT_EQ(request.prompts[0].echo, "<s>hi");
}

TEST(CompletionRequest, KeepsTheEndOfALongPrompt) {
  const auto prompt = [](const std::string& fields) {
    return ParseCompletion(R"({"prompt": [1, 2, 3, 4], )" + fields + "}")->prompts[0].token_ids;
  };
  EXPECT_THAT(prompt(R"("truncate_prompt_tokens": 2)"), ElementsAre(3u, 4u));
  EXPECT_THAT(prompt(R"("truncate_prompt_tokens": 9)"), ElementsAre(1u, 2u, 3u, 4u));
  EXPECT_THAT(prompt(R"("truncate_prompt_tokens": -1, "max_tokens": 97)"), ElementsAre(2u, 3u, 4u))
      << "what leaves room for the answer";
}

// The codec would refuse it by its length alone.
TEST(CompletionRequest, KeepsTheEndOfAPromptThatIsFarTooLong) {
  const std::string text = std::string(1001, 'x') + "yz";
  const auto completion = ParseCompletion(R"({"truncate_prompt_tokens": 2, "prompt": ")" + text + "\"}");
  ASSERT_TRUE(completion.ok()) << completion.status();
  EXPECT_THAT(completion->prompts[0].token_ids, ElementsAre('y', 'z'));
  const auto listed = ParseCompletion(R"({"truncate_prompt_tokens": 2, "prompt": [")" + text + "\"]}");
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_THAT(listed->prompts[0].token_ids, ElementsAre('y', 'z'));
  const auto chat =
      ParseChat(R"({"truncate_prompt_tokens": 3, "messages": [{"role": "user", "content": ")" + text + "\"}]}");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_THAT(chat->prompts[0].token_ids, ElementsAre('n', 't', ':'));
}

TEST(CompletionRequest, TakesEveryFormOfPrompt) {
  const auto prompts = [](const std::string& prompt) {
    std::vector<std::vector<uint32_t>> ids;
    const auto request = ParseCompletion(R"({"add_special_tokens": false, "prompt": )" + prompt + "}");
    EXPECT_TRUE(request.ok()) << request.status();
    if (request.ok()) {
      for (const auto& p : request->prompts) ids.push_back(p.token_ids);
    }
    return ids;
  };
  EXPECT_THAT(prompts(R"("ab")"), ElementsAre(ElementsAre('a', 'b')));
  EXPECT_THAT(prompts(R"(["a", "b"])"), ElementsAre(ElementsAre('a'), ElementsAre('b')));
  EXPECT_THAT(prompts("[1, 299]"), ElementsAre(ElementsAre(1u, 299u)));
  EXPECT_THAT(prompts("[[1], [2, 3]]"), ElementsAre(ElementsAre(1u), ElementsAre(2u, 3u)));
  EXPECT_THAT(prompts(R"("ä")"), ElementsAre(ElementsAre(0xc3u, 0xa4u)));
}

TEST(CompletionRequest, AcceptsTheEdgesOfEveryRange) {
  for (const char* field : {R"("temperature": 2)",
                            R"("top_p": 1)",
                            R"("top_p": 1e-300)",
                            R"("top_k": -1)",
                            R"("top_k": 0)",
                            R"("min_p": 0)",
                            R"("min_p": 1)",
                            R"("n": 128)",
                            R"("n": 1.0)",
                            R"("logprobs": 0)",
                            R"("logprobs": 20)",
                            R"("logprobs": null)",
                            R"("seed": 9223372036854775807)",
                            R"("seed": -9223372036854775808)",
                            R"("stop": [])",
                            R"("stop": null)",
                            R"("stop": ["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16"])",
                            R"("logit_bias": {})",
                            R"("logit_bias": {"0": 100})",
                            R"("max_tokens": 97)",
                            R"("winnow": {})",
                            R"("winnow": {"budget": 1})",
                            R"("winnow": {"budget": 4096})",
                            R"("winnow": {"selection": "dense"})",
                            R"("suffix": "")",
                            R"("suffix": null)",
                            R"("response_format": {"type": "text"})",
                            R"("min_tokens": 0)",
                            R"("length_penalty": 1)",
                            R"("repetition_penalty": 1e-9)"}) {
    const auto request = ParseCompletion(With(field));
    EXPECT_TRUE(request.ok()) << field << ": " << request.status();
  }
}

TEST(CompletionRequest, RefusesAndNamesTheField) {
  const struct {
    const char* fields;
    const char* param;
  } cases[] = {
      {R"("temperature": 2.01)", "temperature"},
      {R"("temperature": -0.1)", "temperature"},
      {R"("temperature": "1")", "temperature"},
      {R"("top_p": 0)", "top_p"},
      {R"("top_p": 1.1)", "top_p"},
      {R"("top_k": -2)", "top_k"},
      {R"("top_k": 1.5)", "top_k"},
      {R"("top_k": 1e12)", "top_k"},
      {R"("min_p": -0.1)", "min_p"},
      {R"("seed": 1.5)", "seed"},
      {R"("seed": 9223372036854775808)", "seed"},
      {R"("seed": "1")", "seed"},
      {R"("stop": 1)", "stop"},
      {R"("stop": [1])", "stop"},
      {R"("stop": "")", "stop"},
      {R"("stop": ["a", ""])", "stop"},
      {R"("stop": ["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])", "stop"},
      {R"("n": 0)", "n"},
      {R"("n": 129)", "n"},
      {R"("n": true)", "n"},
      {R"("n": 2, "best_of": 3)", "best_of"},
      {R"("logprobs": 21)", "logprobs"},
      {R"("logprobs": -1)", "logprobs"},
      {R"("logprobs": true)", "logprobs"},
      {R"("stream": 1)", "stream"},
      {R"("stream_options": {"include_usage": true})", "stream_options"},
      {R"("stream": true, "stream_options": 1)", "stream_options"},
      {R"("stream": true, "stream_options": {"include_usage": 1})", "stream_options.include_usage"},
      {R"("presence_penalty": 2.1)", "presence_penalty"},
      {R"("frequency_penalty": -2.1)", "frequency_penalty"},
      {R"("repetition_penalty": 0)", "repetition_penalty"},
      {R"("repetition_penalty": 1e-300)", "repetition_penalty"},
      {R"("repetition_penalty": 1e300)", "repetition_penalty"},
      {R"("logit_bias": [])", "logit_bias"},
      {R"("logit_bias": {"300": 1})", "logit_bias"},
      {R"("logit_bias": {"-1": 1})", "logit_bias"},
      {R"("logit_bias": {"a": 1})", "logit_bias"},
      {R"("logit_bias": {"1": 101})", "logit_bias"},
      {R"("logit_bias": {"1": "1"})", "logit_bias"},
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("max_tokens": -5)", "max_tokens"},
      {R"("max_tokens": 1e30)", "max_tokens"},
      {R"("max_tokens": 9999999999999999999999)", "max_tokens"},
      {R"("max_tokens": "5")", "max_tokens"},
      {R"("max_tokens": 98)", "max_tokens"},
      {R"("echo": true, "logprobs": 1, "stream": true, "n": 2)", "echo"},
      {R"("prompt_logprobs": 21)", "prompt_logprobs"},
      {R"("prompt_logprobs": 1, "stream": true)", "prompt_logprobs"},
      {R"("cache_prompt": 0)", "cache_prompt"},
      {R"("winnow": {"prompt_progress": true})", "winnow.prompt_progress"},
      {R"("stream": true, "winnow": {"prompt_progress": 1})", "winnow.prompt_progress"},
      {R"("echo": 1)", "echo"},
      {R"("suffix": "x")", "suffix"},
      {R"("min_tokens": 17)", "min_tokens"},
      {R"("min_tokens": -1)", "min_tokens"},
      {R"("bad_words": "a")", "bad_words"},
      {R"("bad_words": [1])", "bad_words"},
      {R"("bad_words": [""])", "bad_words"},
      {R"("allowed_token_ids": [300])", "allowed_token_ids"},
      {R"("allowed_token_ids": [])", "allowed_token_ids"},
      {R"("truncate_prompt_tokens": 0)", "truncate_prompt_tokens"},
      {R"("truncate_prompt_tokens": -2)", "truncate_prompt_tokens"},
      {R"("skip_special_tokens": 1)", "skip_special_tokens"},
      {R"("use_beam_search": true)", "use_beam_search"},
      {R"("response_format": {"type": "xml"})", "response_format.type"},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {}})", "response_format.json_schema.schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}})", "response_format"},
      {R"("guided_json": 1)", "guided_json"},
      {R"("guided_json": {"multipleOf": 2})", "guided_json"},
      {R"("guided_regex": "[")", "guided_regex"},
      {R"("guided_regex": ["a"])", "guided_regex"},
      {R"("guided_choice": [])", "guided_choice"},
      {R"("guided_choice": [1])", "guided_choice"},
      {R"("guided_grammar": "a")", "guided_grammar"},
      {R"("guided_regex": "a", "guided_choice": ["a"])", "guided_choice"},
      {R"("structured_outputs": {})", "structured_outputs"},
      {R"("structured_outputs": {"regex": "a", "choice": ["a"]})", "structured_outputs"},
      {R"("structured_outputs": {"regexp": "a"})", "structured_outputs.regexp"},
      {R"("structured_outputs": {"regex": "a", "whitespace_pattern": " "})", "structured_outputs.whitespace_pattern"},
      {R"("guided_decoding_backend": "outlines")", "guided_decoding_backend"},
      {R"("include_stop_str_in_output": "no")", "include_stop_str_in_output"},
      {R"("ignore_eos": "yes")", "ignore_eos"},
      {R"("return_token_ids": 1)", "return_token_ids"},
      {R"("stop_token_ids": [300])", "stop_token_ids"},
      {R"("stop_token_ids": 1)", "stop_token_ids"},
      {R"("model": 5)", "model"},
      {R"("winnow": 1)", "winnow"},
      {R"("winnow": {"selction": "winnow"})", "winnow.selction"},
      {R"("winnow": {"selection": "best"})", "winnow.selection"},
      {R"("winnow": {"selection": 1})", "winnow.selection"},
      {R"("winnow": {"budget": 0})", "winnow.budget"},
      {R"("winnow": {"budget": 4097})", "winnow.budget"},
      {R"("winnow": {"budget": 64.5})", "winnow.budget"},
      {R"("winnow": {"selection": "dense", "budget": 64})", "winnow.budget"},
      {R"("winnow": {"min_captured_mass": -0.1})", "winnow.min_captured_mass"},
      {R"("winnow": {"budget": "many"})", "winnow.budget"},
      {R"("winnow": {"selection": "winnow,budget=4097"})", "winnow.selection"},
      {R"("winnow": {"selection": "winnow,budget=64", "budget": 4097})", "winnow.budget"},
      {R"("winnow": {"selection": "winnow,sinks=5"})", "winnow.selection"},
      {R"("winnow": {"selection": {"sinks": 5}})", "winnow.selection.sinks"},
      {R"("winnow": {"selection": {"window": "wide"}})", "winnow.selection.window"},
      {R"("winnow": {"selection": {"windows": 4}})", "winnow.selection.windows"},
      {R"("winnow": {"selection": {"preset": "best"}})", "winnow.selection.preset"},
      {R"("winnow": {"selection": {"predictor": "exact", "budget": 5000}})", "winnow.selection.budget"},
      {R"("winnow": {"selection": ["winnow"]})", "winnow.selection"},
      {R"("winnow": {"min_captured_mass": 1.1})", "winnow.min_captured_mass"},
      {R"("winnow": {"priority": 101})", "winnow.priority"},
      {R"("winnow": {"priority": -101})", "winnow.priority"},
      {R"("winnow": {"priority": 18446744073709551615})", "winnow.priority"},
      {R"("winnow": {"priority": 0.5})", "winnow.priority"},
      {R"("winnow": {"priority": "high"})", "winnow.priority"},
      {R"("winnow": {"trace": 7})", "winnow.trace"},
      {R"("winnow": {"trace": 513})", "winnow.trace"},
      {R"("winnow": {"trace": true})", "winnow.trace"},
  };
  for (const auto& c : cases) {
    const absl::Status status = ParseCompletion(With(c.fields)).status();
    EXPECT_EQ(ToApiError(status).http_status, 400) << c.fields;
    EXPECT_EQ(ToApiError(status).param, c.param) << c.fields << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.param));
  }
}

// As evaluation harnesses ask.
TEST(CompletionRequest, ScoresPromptsWithOrWithoutAnAnswer) {
  const GenerationRequest one = *ParseCompletion(With(R"("echo": true, "logprobs": 1, "max_tokens": 1)"));
  EXPECT_TRUE(one.echoes_logprobs);
  EXPECT_FALSE(one.drops_answer);
  EXPECT_FALSE(one.prompt_logprobs.has_value());
  const GenerationRequest none = *ParseCompletion(With(R"("echo": true, "logprobs": 1, "max_tokens": 0)"));
  EXPECT_TRUE(none.drops_answer);
  EXPECT_EQ(none.prompts[0].max_tokens, 1u) << "a rank draws one all the same";
  EXPECT_EQ(*ParseCompletion(With(R"("prompt_logprobs": 3)"))->prompt_logprobs, 3u);
  EXPECT_EQ(*ParseChat(ChatWith(R"("prompt_logprobs": 0)"))->prompt_logprobs, 0u);
  EXPECT_FALSE(ParseCompletion(With(R"("echo": true)"))->echoes_logprobs);
  EXPECT_TRUE(ParseCompletion(With(R"("cache_prompt": false)"))->fields.skip_prefix_cache);
  EXPECT_FALSE(ParseCompletion(With(R"("cache_prompt": true)"))->fields.skip_prefix_cache);
}

TEST(CompletionRequest, RefusesBadPrompts) {
  for (const char* prompt :
       {"1", "true", "{}", "[]", "[[]]", R"([""])", R"(["a", 1])", R"([1, "a"])", R"([[1], 2])", R"([[1], "a"])",
        "[300]", "[-1]", "[1.5]", "[[1], [300]]", "[null]", "[true]", "[[[1]]]"}) {
    const absl::Status status =
        ParseCompletion(std::string(R"({"add_special_tokens": false, "prompt": )") + prompt + "}").status();
    EXPECT_EQ(ToApiError(status).http_status, 400) << prompt;
    EXPECT_THAT(ToApiError(status).param, HasSubstr("prompt")) << prompt;
  }
  EXPECT_EQ(ToApiError(ParseCompletion("{}").status()).code, "missing_required_parameter");
  EXPECT_FALSE(ParseCompletion(R"({"add_special_tokens": false, "prompt": ""})").ok());
}

// The codec says so without tokenizing: it stops at ten bytes per token.
TEST(CompletionRequest, ThatIsFarTooLongForTheContextIsRefusedByItsLength) {
  const std::string text(1001, 'x');
  const ApiError error = ToApiError(ParseCompletion(R"({"prompt": ")" + text + "\"}").status());
  EXPECT_EQ(error.http_status, 400);
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_EQ(error.param, "prompt");
  EXPECT_EQ(error.message, "This model's maximum context length is 100 tokens, but the prompt has more.");
  const ApiError chat =
      ToApiError(ParseChat(R"({"messages": [{"role": "user", "content": ")" + text + "\"}]}").status());
  EXPECT_EQ(chat.code, "context_length_exceeded");
  EXPECT_EQ(chat.param, "messages");
  EXPECT_EQ(chat.message, error.message);
}

TEST(CompletionRequest, NamesTheNumbersWhenTheContextIsExceeded) {
  const auto prompt_of = [](int bytes) { return R"({"prompt": ")" + std::string(bytes, 'x') + R"(")"; };
  // One token more than its bytes: <s>.
  EXPECT_EQ(ParseCompletion(prompt_of(98) + "}")->prompts[0].max_tokens, 1u) << "the default is cut to what is left";
  const ApiError full = ToApiError(ParseCompletion(prompt_of(99) + "}").status());
  EXPECT_EQ(full.code, "context_length_exceeded");
  EXPECT_EQ(full.param, "prompt");
  EXPECT_EQ(full.message,
            "This model's maximum context length is 100 tokens, but the prompt has 100 tokens, which leaves no room "
            "for an answer.");
  EXPECT_EQ(ParseCompletion(prompt_of(89) + R"(, "max_tokens": 10})")->prompts[0].max_tokens, 10u);
  const ApiError over = ToApiError(ParseCompletion(prompt_of(89) + R"(, "max_tokens": 11})").status());
  EXPECT_EQ(over.code, "context_length_exceeded");
  EXPECT_EQ(over.param, "max_tokens");
  EXPECT_EQ(over.message,
            "This model's maximum context length is 100 tokens, but the prompt has 90 and \"max_tokens\" asks for 11 "
            "more (101 in all); at most "
            "10 can be generated.");
}

TEST(CompletionRequest, LimitsTheChoicesOfOneRequest) {
  std::string prompts = R"("a")";
  for (int i = 1; i < 8; ++i) prompts += R"(,"a")";
  EXPECT_EQ(ParseCompletion(R"({"n": 128, "prompt": [)" + prompts + "]}")->prompts.size(), 8u);
  const absl::Status status = ParseCompletion(R"({"n": 128, "prompt": [)" + prompts + R"(,"a"]})").status();
  EXPECT_EQ(ToApiError(status).param, "prompt");
}

TEST(CompletionRequest, KnowsOneModel) {
  const ApiError error = ToApiError(ParseCompletion(With(R"("model": "gpt-4")")).status());
  EXPECT_EQ(error.http_status, 404);
  EXPECT_EQ(error.code, "model_not_found");
  EXPECT_EQ(error.param, "model");
  EXPECT_THAT(error.message, HasSubstr("org/tiny"));
}

TEST(CompletionRequest, AsksForNoMoreSamplesThanTheQueueHolds) {
  ServedModel model = TestModel();
  model.max_queue = 4;
  const auto error_of = [&](const char* body) {
    return ToApiError(ParseCompletionRequest(*ParseJsonObject(body), model, FakeTextCodec()).status());
  };
  EXPECT_TRUE(
      ParseCompletionRequest(*ParseJsonObject(R"({"prompt": ["a", "b"], "n": 2})"), model, FakeTextCodec()).ok());
  const ApiError samples = error_of(R"({"prompt": "a", "n": 5})");
  EXPECT_EQ(samples.http_status, 400);
  EXPECT_EQ(samples.param, "n");
  EXPECT_THAT(samples.message, HasSubstr("room for 4 samples"));
  const ApiError prompts = error_of(R"({"prompt": ["a", "b", "c"], "n": 2})");
  EXPECT_EQ(prompts.http_status, 400);
  EXPECT_EQ(prompts.param, "prompt");
  EXPECT_THAT(prompts.message, HasSubstr("(--max-queue)"));
}

}  // namespace
}  // namespace winnow
