#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "common/grammar/automaton.h"
#include "common/grammar/grammar_states.h"
#include "common/grammar/grammar_text.h"
#include "common/selection/spec_text.h"
#include "router/openai/api_error.h"
#include "router/openai/chat_request.h"
#include "router/openai/completion_request.h"
#include "router/openai/tokenize.h"
#include "tests/router/openai/fake_text_codec.h"

namespace winnow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ServedModel TestModel() {
  return {.id = "org/tiny",
          .max_context_tokens = 100,
          .vocab_size = FakeTextCodec::kVocabSize,
          .max_budget_tokens = 4096,
          .default_selection = {}};
}

absl::StatusOr<GenerationRequest> ParseCompletion(std::string_view text) {
  WINNOW_ASSIGN_OR_RETURN(const Json body, ParseJsonObject(text));
  return ParseCompletionRequest(body, TestModel(), FakeTextCodec());
}

absl::StatusOr<GenerationRequest> ParseChat(std::string_view text) {
  WINNOW_ASSIGN_OR_RETURN(const Json body, ParseJsonObject(text));
  return ParseChatRequest(body, TestModel(), FakeTextCodec());
}

// A completions body with one more field.
std::string With(const std::string& fields) {
  return R"({"prompt": "hi", )" + fields + "}";
}
std::string ChatWith(const std::string& fields) {
  return R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}";
}

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

TEST(SelectionFields, TakesAPresetATextOrAnObject) {
  const auto selection = [](const std::string& winnow) {
    const auto request = ParseCompletion(With(R"("winnow": )" + winnow));
    return request.ok() ? SpecText(request->fields.selection) : std::string(request.status().message());
  };
  EXPECT_EQ(selection("{}"), "depth");
  EXPECT_EQ(selection(R"({"selection": "exact-token"})"), "exact-token");
  const char expected[] = "depth,predictor=temporal,window=4,budget=64";
  EXPECT_EQ(selection(R"({"selection": "depth,predictor=temporal,window=4,budget=64"})"), expected);
  EXPECT_EQ(selection(R"({"selection": {"preset": "depth", "predictor": "temporal", "window": 4, "budget": 64}})"),
            expected);
  EXPECT_EQ(selection(R"({"selection": {"predictor": "temporal", "window": 4, "budget": 9}, "budget": 64})"), expected)
      << "the shorthand wins";
  EXPECT_EQ(selection(R"({"selection": {"sinks": 4, "recent": null}})"), "depth") << "fixed fields may be repeated";
}

TEST(SelectionFields, SaysThatAFieldIsFixed) {
  const ApiError error = ToApiError(ParseCompletion(With(R"("winnow": {"selection": {"recent": 128}})")).status());
  EXPECT_EQ(error.http_status, 400);
  EXPECT_EQ(error.message,
            "\"winnow.selection.recent\": selection.recent is fixed when the server starts, at 64; a request cannot "
            "change it to 128.");
}

TEST(SelectionFields, TheGuardIsAcceptedOnceItIsBuilt) {
  const absl::Status status = ParseCompletion(With(R"("winnow": {"min_captured_mass": 0.9})")).status();
  EXPECT_TRUE(status.ok() || ToApiError(status).code == "unsupported_parameter") << status;
}

TEST(SelectionFields, APresetKeepsToTheServersBudget) {
  ServedModel model = TestModel();
  model.max_budget_tokens = 100;
  const Json body = *ParseJsonObject(R"({"prompt": "a", "winnow": {"selection": "async-token"}})");
  const GenerationRequest request = *ParseCompletionRequest(body, model, FakeTextCodec());
  EXPECT_EQ(request.fields.selection.budget_tokens, 100u);
  EXPECT_EQ(request.fields.selection.predictor, Predictor::kTemporal);
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

TEST(ChatRequest, FillsTheContextUnlessLimited) {
  const GenerationRequest request = *ParseChat(R"({"messages": [{"role": "user", "content": "hi"}]})");
  const std::string text = "user:hi;assistant:";
  EXPECT_EQ(request.prompts[0].token_ids, std::vector<uint32_t>(text.begin(), text.end()))
      << "the template writes special tokens";
  EXPECT_EQ(request.prompts[0].max_tokens, 100 - text.size());
  EXPECT_EQ(ParseChat(ChatWith(R"("max_tokens": 5)"))->prompts[0].max_tokens, 5u);
  EXPECT_EQ(ParseChat(ChatWith(R"("max_tokens": 5, "max_completion_tokens": 6)"))->prompts[0].max_tokens, 6u);
}

TEST(ChatRequest, ReadsLogprobs) {
  EXPECT_EQ(ParseChat(ChatWith(R"("logprobs": false)"))->top_logprobs, std::nullopt);
  EXPECT_EQ(ParseChat(ChatWith(R"("logprobs": true)"))->top_logprobs, 0u);
  EXPECT_EQ(ParseChat(ChatWith(R"("logprobs": true, "top_logprobs": 20)"))->top_logprobs, 20u);
}

TEST(ChatRequest, TemplatesSeeObjectsInTheOrderOfTheClient) {
  const GenerationRequest request = *ParseChat(
      R"({"chat_template_kwargs": {"tools": {"type": "function", "name": "f", "arguments": {"b": 1, "a": 2}}},
          "messages": [{"role": "user", "content": "c"}], "add_generation_prompt": false})");
  EXPECT_EQ(FakeTextCodec().Decode(request.prompts[0].token_ids, false),
            R"({"tools":{"type":"function","name":"f","arguments":{"b":1,"a":2}}};user:c;)");
}

TEST(ChatRequest, JoinsTextParts) {
  const GenerationRequest request = *ParseChat(
      R"({"messages": [{"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                       {"role": "assistant", "content": null}, {"role": "user", "content": "c"}], "add_generation_prompt": false})");
  EXPECT_EQ(FakeTextCodec().Decode(request.prompts[0].token_ids, false), "system:a\nb;assistant:;user:c;");
}

TEST(ChatRequest, RefusesAndNamesTheField) {
  const struct {
    std::string body;
    const char* param;
  } cases[] = {
      {"{}", "messages"},
      {R"({"messages": "hi"})", "messages"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": [1]})", "messages[0]"},
      {R"({"messages": [{"content": "a"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "robot", "content": "a"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "user", "content": "a"}, {"role": "user"}]})", "messages[1].content"},
      {R"({"messages": [{"role": "user", "content": 1}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": [1]}]})", "messages[0].content[0]"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "messages[0].content[0].type"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", "messages[0].content[0].text"},
      {ChatWith(R"("top_logprobs": 5)"), "top_logprobs"},
      {ChatWith(R"("logprobs": true, "top_logprobs": 21)"), "top_logprobs"},
      {ChatWith(R"("logprobs": 1)"), "logprobs"},
      {ChatWith(R"("max_completion_tokens": 1000)"), "max_completion_tokens"},
      {ChatWith(R"("max_tokens": 0)"), "max_tokens"},
      {ChatWith(R"("tools": {})"), "tools"},
      {ChatWith(R"("tools": [1])"), "tools[0]"},
      {ChatWith(R"("tools": [{"type": "custom"}])"), "tools[0].type"},
      {ChatWith(R"("tools": [{"type": "function"}])"), "tools[0].function"},
      {ChatWith(R"("tools": [{"type": "function", "function": {}}])"), "tools[0].function.name"},
      {ChatWith(R"("tools": [{"type": "function", "function": {"name": "f", "parameters": []}}])"),
       "tools[0].function.parameters"},
      {ChatWith(R"("tool_choice": {"type": "function", "function": {"name": "f"}})"), "tool_choice"},
      {ChatWith(R"("tool_choice": "some")"), "tool_choice"},
      {ChatWith(R"("parallel_tool_calls": 1)"), "parallel_tool_calls"},
      {ChatWith(R"("reasoning_effort": "huge")"), "reasoning_effort"},
      {ChatWith(R"("enable_thinking": "yes")"), "enable_thinking"},
      {ChatWith(R"("documents": [{"text": "a"}])"), "documents"},
      {R"({"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]})", "messages[0].tool_calls"},
      {R"({"messages": [{"role": "assistant", "tool_calls": 1}]})", "messages[0].tool_calls"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]})", "messages[0].tool_calls[0].function"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1"}}]}]})",
       "messages[0].tool_calls[0].function.arguments"},
      {ChatWith(R"("continue_final_message": true, "add_generation_prompt": true)"), "continue_final_message"},
      {R"({"continue_final_message": true, "messages": [{"role": "assistant", "content": " "}]})",
       "messages[0].content"},
      {ChatWith(R"("tool_choice": "required")"), "tool_choice"},
      {ChatWith(R"("functions": [{}])"), "functions"},
      {ChatWith(R"("modalities": ["audio"])"), "modalities"},
      {ChatWith(R"("response_format": {"type": "json_schema"})"), "response_format.json_schema"},
      {ChatWith(R"("chat_template": "x")"), "chat_template"},
      {ChatWith(R"("chat_template_kwargs": [])"), "chat_template_kwargs"},
      {ChatWith(R"("chat_template_kwargs": {"refuse": true})"), "messages"},
  };
  for (const auto& c : cases) {
    const absl::Status status = ParseChat(c.body).status();
    EXPECT_EQ(ToApiError(status).http_status, 400) << c.body;
    EXPECT_EQ(ToApiError(status).param, c.param) << c.body << ": " << status;
  }
}

// A chat of a model that writes Hermes' calls and thinks.
absl::StatusOr<GenerationRequest> ParseToolChat(const std::string& fields, const FakeTextCodec& codec = {}) {
  ServedModel model = TestModel();
  model.max_context_tokens = 1000;
  model.chat_formats = {.tools = ToolFormat::kHermes, .reasoning = ReasoningFormat::kThink};
  WINNOW_ASSIGN_OR_RETURN(const Json body, ParseJsonObject(ChatWith(fields)));
  return ParseChatRequest(body, model, codec);
}

std::string PromptOf(const absl::StatusOr<GenerationRequest>& request) {
  return request.ok() ? FakeTextCodec().Decode(request->prompts[0].token_ids, false) : request.status().ToString();
}

constexpr char kTool[] = R"({"type":"function","function":{"name":"f","parameters":{"b":1,"a":2}}})";

TEST(ChatTools, AreShownToTheTemplateAsTheClientWroteThem) {
  const auto request = ParseToolChat(std::string(R"("tools": [)") + kTool + R"(], "parallel_tool_calls": false)");
  EXPECT_EQ(PromptOf(request), std::string(R"({"tools":[)") + kTool + "]};user:hi;assistant:");
  EXPECT_EQ(request->parsing.tools, ToolFormat::kHermes);
  EXPECT_FALSE(request->parsing.parallel_tool_calls);
  EXPECT_THAT(request->shown_special, ElementsAre(258u)) << "the marker that is a token";
}

TEST(ChatTools, AreNotShownAndNotLookedForWhenNoneMayBeCalled) {
  const auto request = ParseToolChat(std::string(R"("tool_choice": "none", "tools": [)") + kTool + "]");
  EXPECT_EQ(PromptOf(request), "user:hi;assistant:");
  EXPECT_EQ(request->parsing.tools, ToolFormat::kNone);
  EXPECT_EQ(ParseToolChat(R"("user": "u")")->parsing.tools, ToolFormat::kNone);
}

TEST(ChatTools, AreRefusedWhereTheyWouldHaveNoEffect) {
  const std::string tools = std::string(R"("tools": [)") + kTool + "]";
  EXPECT_THAT(ToApiError(ParseChat(ChatWith(tools)).status()).message, HasSubstr("--tool-format"))
      << "the format is not known";
  FakeTextCodec blind;
  blind.read_variables = {};
  EXPECT_THAT(ToApiError(ParseToolChat(tools, blind).status()).message, HasSubstr("template does not show them"));
  const ApiError forced = ToApiError(ParseToolChat(tools + R"(, "tool_choice": "required")").status());
  EXPECT_EQ(forced.param, "tool_choice");
  EXPECT_THAT(forced.message, HasSubstr("tools[0].function.parameters: keyword \"b\" is not supported"));
}

// The grammar of a request's answers; empty: they may be anything.
std::string GrammarOf(const absl::StatusOr<GenerationRequest>& request) {
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? request->fields.sampling.constraint().grammar() : "";
}

bool Matches(const std::string& grammar, std::string_view text) {
  const absl::StatusOr<Grammar> parsed = ParseGrammarText(grammar);
  if (!parsed.ok()) return false;
  const Automaton automaton = *Automaton::Compile(*parsed);
  GrammarStates states(automaton);
  GrammarStates::StateId state = states.Start();
  for (const char c : text) state = states.Next(state, static_cast<uint8_t>(c));
  return states.accepts(state);
}

TEST(ChatTools, ThatMustBeCalledConstrainTheAnswer) {
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f", "parameters":
      {"type": "object", "properties": {"a": {"type": "integer"}}}}}, {"type": "function", "function": {"name": "g"}}])";
  constexpr std::string_view kCallF = R"(<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>)";
  constexpr std::string_view kCallG = R"(<tool_call>{"name": "g", "arguments": {}}</tool_call>)";
  EXPECT_EQ(GrammarOf(ParseToolChat(tools)), "");
  const auto any = ParseToolChat(tools + R"(, "tool_choice": "required")");
  EXPECT_TRUE(Matches(GrammarOf(any), kCallF));
  EXPECT_TRUE(Matches(GrammarOf(any), std::string(kCallG) + std::string(kCallF)));
  EXPECT_FALSE(Matches(GrammarOf(any), "hi"));
  EXPECT_TRUE(Matches(GrammarOf(any), "<think>hm</think>" + std::string(kCallG)));
  EXPECT_THAT(any->fields.sampling.constraint().shown_special_token_ids(), ElementsAre(258u));
  const auto one = ParseToolChat(tools + R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})");
  EXPECT_TRUE(Matches(GrammarOf(one), kCallG));
  EXPECT_FALSE(Matches(GrammarOf(one), kCallF));
  EXPECT_FALSE(Matches(GrammarOf(one), std::string(kCallG) + std::string(kCallG)));
  const auto unknown = ParseToolChat(tools + R"(, "tool_choice": {"type": "function", "function": {"name": "h"}})");
  EXPECT_EQ(ToApiError(unknown.status()).param, "tool_choice");
  const auto both = ParseToolChat(tools + R"(, "tool_choice": "required", "response_format": {"type": "json_object"})");
  EXPECT_EQ(ToApiError(both.status()).param, "response_format");
}

TEST(Constraints, AreReadInEveryFormThatClientsSend) {
  constexpr std::string_view kValid = R"({"a": 1})";
  constexpr std::string_view kMore = R"({"a": 1, "b": 2})";
  const std::string schema = R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})";
  const auto format = [&](const std::string& more) {
    return R"("response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": )" + schema + more +
           "}}";
  };
  for (const std::string& fields :
       {format(""), R"("guided_json": )" + schema, R"("structured_outputs": {"json": )" + schema + "}",
        R"("guided_json": )" + Json(schema).dump()}) {
    for (const auto& request : {ParseCompletion(With(fields)), ParseChat(ChatWith(fields))}) {
      EXPECT_TRUE(Matches(GrammarOf(request), kValid)) << fields;
      EXPECT_TRUE(Matches(GrammarOf(request), kMore)) << fields;
      EXPECT_FALSE(Matches(GrammarOf(request), "{}")) << fields;
    }
  }
  EXPECT_FALSE(Matches(GrammarOf(ParseChat(ChatWith(format(R"(, "strict": true)")))), kMore));
  EXPECT_EQ(GrammarOf(ParseChat(ChatWith(R"("response_format": {"type": "text"})"))), "");
  EXPECT_TRUE(Matches(GrammarOf(ParseChat(ChatWith(R"("response_format": {"type": "json_object"})"))), kMore));
  EXPECT_TRUE(Matches(GrammarOf(ParseCompletion(With(R"("guided_regex": "a+")"))), "aa"));
  EXPECT_TRUE(Matches(GrammarOf(ParseCompletion(With(R"("guided_choice": ["yes", "no"])"))), "no"));
  EXPECT_TRUE(Matches(GrammarOf(ParseCompletion(With(R"("guided_grammar": "root ::= [ab]")"))), "b"));
  const std::string compact = GrammarOf(
      ParseCompletion(With(R"("structured_outputs": {"json_object": true, "disable_any_whitespace": true})")));
  EXPECT_TRUE(Matches(compact, R"({"a":1})"));
  EXPECT_FALSE(Matches(compact, kValid));
}

TEST(Constraints, OnTokensAreRead) {
  const v1::SamplingParams sampling =
      ParseCompletion(With(R"("min_tokens": 3, "allowed_token_ids": [5, 6], "bad_words": ["ab"])"))->fields.sampling;
  EXPECT_EQ(sampling.min_tokens(), 3u);
  EXPECT_THAT(sampling.allowed_token_ids(), ElementsAre(5u, 6u));
  ASSERT_EQ(sampling.bad_words_size(), 2);
  EXPECT_THAT(sampling.bad_words(0).token_ids(), ElementsAre('a', 'b'));
  EXPECT_THAT(sampling.bad_words(1).token_ids(), ElementsAre(' ', 'a', 'b')) << "behind a space";
}

TEST(ChatTools, EarlierCallsReachTheTemplateWithArgumentsAsObjects) {
  ServedModel model = TestModel();
  model.max_context_tokens = 200;
  const Json body = *ParseJsonObject(
      R"({"add_generation_prompt": false, "messages": [
          {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}}]},
          {"role": "tool", "tool_call_id": "1", "content": "3"},
          {"role": "assistant", "content": "x", "tool_calls": []}]})");
  const auto request = ParseChatRequest(body, model, FakeTextCodec());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(FakeTextCodec().Decode(request->prompts[0].token_ids, false),
            R"(assistant:[{"id":"1","type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}}];tool:3;)"
            "assistant:x;");
}

TEST(ChatReasoning, SwitchesReachTemplatesThatReadThem) {
  EXPECT_EQ(PromptOf(ParseToolChat(R"("reasoning_effort": "low", "enable_thinking": true)")),
            R"({"enable_thinking":true,"reasoning_effort":"low"};user:hi;assistant:)");
  EXPECT_EQ(PromptOf(ParseToolChat(R"("enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false})")),
            R"({"enable_thinking":false};user:hi;assistant:)")
      << "what names the template's variables wins";
  FakeTextCodec binary;
  binary.read_variables = {"enable_thinking"};
  EXPECT_EQ(PromptOf(ParseToolChat(R"("reasoning_effort": "none")", binary)),
            R"({"enable_thinking":false};user:hi;assistant:)");
  EXPECT_EQ(PromptOf(ParseToolChat(R"("reasoning_effort": "high")", binary)),
            R"({"enable_thinking":true};user:hi;assistant:)");
  FakeTextCodec blind;
  blind.read_variables = {};
  for (const char* field : {R"("reasoning_effort": "low")", R"("enable_thinking": false)"}) {
    EXPECT_THAT(ToApiError(ParseToolChat(field, blind).status()).message, HasSubstr("would have no effect"));
  }
}

TEST(ChatReasoning, IsOpenWhereThePromptEndsWithItsMarker) {
  EXPECT_FALSE(ParseToolChat(R"("user": "u")")->parsing.begins_in_reasoning);
  FakeTextCodec opening;
  opening.opening = "<think>\n";
  const auto request = ParseToolChat(R"("include_reasoning": false)", opening);
  EXPECT_TRUE(request->parsing.begins_in_reasoning);
  EXPECT_FALSE(request->parsing.include_reasoning);
}

TEST(ChatRequest, ContinuesTheLastMessage) {
  const auto prompt = [](const std::string& content) {
    const auto request = ParseChat(
        R"({"continue_final_message": true, "messages": [{"role": "assistant", "content": ")" + content + R"("}]})");
    return PromptOf(request);
  };
  EXPECT_EQ(prompt("One, two"), "assistant:One, two");
  EXPECT_EQ(prompt(" One, two "), "assistant: One, two ") << "where the template keeps the space";
}

TEST(RequestFields, AreNeverIgnoredInSilence) {
  const struct {
    const char* fields;
    const char* param;
    const char* message;
  } cases[] = {
      {R"("max_token": 5)", "max_token", "did you mean \"max_tokens\"?"},
      {R"("temprature": 0)", "temprature", "did you mean \"temperature\"?"},
      {R"("unheard_of_field": [1])", "unheard_of_field", "is not a field of /v1/completions"},
      {R"("messages": [])", "messages", "is a field of /v1/chat/completions, not of /v1/completions."},
      {R"("grammar": "root ::= a")", "grammar", "is not supported"},
      {R"("lora": "x")", "lora", "is not supported"},
      {R"("cache_salt": "x")", "cache_salt", "instead there is the API key"},
      {R"("priority": 3)", "priority", "winnow.priority"},
      {R"("stream": true, "stream_options": {"include_usge": true})", "stream_options.include_usge",
       "did you mean \"stream_options.include_usage\"?"},
  };
  for (const auto& c : cases) {
    const ApiError error = ToApiError(ParseCompletion(With(c.fields)).status());
    EXPECT_EQ(error.http_status, 400) << c.fields;
    EXPECT_EQ(error.param, c.param);
    EXPECT_THAT(error.message, HasSubstr(c.message));
  }
  const std::string long_name(1 << 20, 'x');
  const ApiError error = ToApiError(ParseCompletion(With("\"" + long_name + "\": 1")).status());
  EXPECT_EQ(error.param.size(), 64u) << "a name is shown as far as anybody would read it";
}

TEST(RequestFields, AreKnownOnceForEachEndpoint) {
  std::set<std::pair<std::string, Endpoint>> seen;
  for (const RequestField& field : RequestFields()) {
    EXPECT_FALSE(field.endpoints.empty()) << field.name;
    for (const Endpoint endpoint : field.endpoints) {
      EXPECT_TRUE(seen.emplace(field.name, endpoint).second) << field.name << " of " << EndpointPath(endpoint);
    }
  }
}

// Bodies as public clients and load generators send them, extra fields included.
TEST(RequestFields, PassWhatPublicClientsSend) {
  const char* chats[] = {
      // vllm bench serve
      R"("model": "org/tiny", "temperature": 0.0, "max_completion_tokens": 5, "stream": true,
         "stream_options": {"include_usage": true}, "ignore_eos": true, "repetition_penalty": 1.0)",
      // guidellm: both limits, and usage in every chunk
      R"("model": "org/tiny", "max_tokens": 5, "max_completion_tokens": 5, "stop": null, "ignore_eos": true,
         "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})",
      // aiperf
      R"("model": "org/tiny", "max_completion_tokens": 5, "stream": true, "stream_options": {"include_usage": true})",
      // langchain
      R"("model": "org/tiny", "stream": false, "n": 1, "temperature": 0.7, "frequency_penalty": 0, "presence_penalty": 0,
         "top_p": 1, "user": "me", "metadata": {"a": "b"}, "store": false, "service_tier": "auto",
         "prompt_cache_key": "k")",
      // ai-sdk
      R"("model": "org/tiny", "max_tokens": 5, "temperature": 0, "response_format": {"type": "text"}, "seed": 1,
         "verbosity": "medium", "stream": true, "stream_options": {"include_usage": true})",
      // openai
      R"("model": "org/tiny", "modalities": ["text"], "logprobs": true, "top_logprobs": 2, "safety_identifier": "s",
         "prompt_cache_retention": "24h", "stream": true, "stream_options": {"include_obfuscation": false})",
  };
  for (const char* fields : chats)
    EXPECT_TRUE(ParseChat(ChatWith(fields)).ok()) << ParseChat(ChatWith(fields)).status();
  const char* completions[] = {
      // vllm bench serve
      R"("model": "org/tiny", "temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 5, "logprobs": null,
         "stream": true, "stream_options": {"include_usage": true}, "ignore_eos": true)",
      // guidellm
      R"("model": "org/tiny", "max_tokens": 5, "max_completion_tokens": 5, "stop": null, "ignore_eos": true,
         "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})",
      // sglang bench_serving
      R"("model": "org/tiny", "temperature": 0.0, "best_of": 1, "max_tokens": 5, "stream": true, "ignore_eos": true)",
  };
  for (const char* fields : completions) {
    EXPECT_TRUE(ParseCompletion(With(fields)).ok()) << ParseCompletion(With(fields)).status();
  }
}

TEST(ChatRequest, PassesClientsUsualExtras) {
  for (const char* field :
       {R"("tools": [])", R"("tool_choice": "none")", R"("parallel_tool_calls": true)", R"("user": "me")",
        R"("metadata": {})", R"("store": false)", R"("service_tier": "auto")", R"("modalities": ["text"])"}) {
    EXPECT_TRUE(ParseChat(ChatWith(field)).ok()) << field;
  }
}

TEST(Tokenize, GoesBothWays) {
  const auto tokenize = [](const char* body) {
    return TokenizeJson(*ParseJsonObject(body), TestModel(), FakeTextCodec());
  };
  EXPECT_EQ(*tokenize(R"({"prompt": "hi"})"), R"({"count":3,"max_model_len":100,"tokens":[256,104,105]})");
  EXPECT_EQ(*tokenize(R"({"prompt": "hi", "add_special_tokens": false})"),
            R"({"count":2,"max_model_len":100,"tokens":[104,105]})");
  EXPECT_THAT(*tokenize(R"({"messages": [{"role": "user", "content": "a"}]})"), HasSubstr(R"("count":17)"));
  EXPECT_EQ(*tokenize(R"({"prompt": "hi", "truncate_prompt_tokens": 1})"),
            R"({"count":1,"max_model_len":100,"tokens":[105]})");
  EXPECT_THAT(*tokenize(R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function",
                          "function": {"name": "f"}}], "continue_final_message": true})"),
              HasSubstr(R"("count":62)"))
      << "as the chat's prompt would be";
  EXPECT_EQ(ToApiError(tokenize(R"({"prompt": "a", "temperature": 1})").status()).param, "temperature");
  EXPECT_FALSE(tokenize("{}").ok());
  EXPECT_FALSE(tokenize(R"({"prompt": ["a"]})").ok());
  EXPECT_FALSE(tokenize(R"({"prompt": "a", "messages": []})").ok());
  EXPECT_EQ(tokenize(R"({"prompt": "a", "model": "x"})").status().code(), absl::StatusCode::kNotFound);

  const auto detokenize = [](const char* body) {
    return DetokenizeJson(*ParseJsonObject(body), TestModel(), FakeTextCodec());
  };
  EXPECT_EQ(*detokenize(R"({"tokens": [256, 104, 105]})"), R"({"prompt":"<s>hi"})");
  EXPECT_FALSE(detokenize(R"({"tokens": [300]})").ok());
  EXPECT_FALSE(detokenize(R"({"tokens": "a"})").ok());
  EXPECT_FALSE(detokenize("{}").ok());
}

}  // namespace
}  // namespace winnow
