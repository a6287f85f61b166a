#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "router/openai/json/api_error.h"
#include "tests/router/openai/request/parsed_request.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace winnow
