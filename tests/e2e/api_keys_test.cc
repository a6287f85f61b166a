// API keys of a whole cluster: who is refused what over HTTP and gRPC, and that changes of the file need no restart.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"
#include "winnow/v1/generation.grpc.pb.h"
#include "winnow/v1/model.grpc.pb.h"
#include "winnow/v1/tokenizer.grpc.pb.h"

namespace winnow::e2e {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::chrono::seconds kLong{30};

// What the command printed; fails the test where it did not end with 0.
std::string OutputOf(const std::string& arguments) {
  const std::string command = WinnowBinary() + " " + arguments;
  std::FILE* const pipe = popen(command.c_str(), "r");
  std::string output;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0) << command;
  while (output.ends_with('\n')) output.pop_back();
  return output;
}

std::string KeyFilePath() {
  return testing::TempDir() + "/winnow-api-keys.yaml";
}

// The key that it made.
std::string AddKey(const std::string& options) {
  return OutputOf("keys add " + KeyFilePath() + " " + options);
}

struct Keys {
  std::string plain, once_a_minute, narrow, other_model;
} keys;

struct ServerWithKeys {
  static Cluster::Options Options() {
    std::remove(KeyFilePath().c_str());
    keys.plain = AddKey("--name=plain");
    keys.once_a_minute = AddKey("--name=once --requests-per-minute=1");
    keys.narrow =
        AddKey("--name=narrow --max-priority=0 --max-prompt-tokens=8 --max-answer-tokens=4 --max-concurrent=2");
    keys.other_model = AddKey("--name=other --models=large");
    return {.flags = {"--budget=256", "--max-context=4096", "--model-id=demo,large", "--api-keys=" + KeyFilePath()}};
  }
};

class ApiKeys : public SharedCluster<ServerWithKeys> {
 protected:
  HttpClient With(const std::string& key) const {
    return HttpClient(cluster_->http_address(), std::chrono::seconds(120), key);
  }
  static Json Short() { return {{"prompt", {1000, 1001, 1002}}, {"max_tokens", 2}, {"temperature", 0}}; }
  static Json Short(const Json& more) {
    Json body = Short();
    body.update(more);
    return body;
  }

  // The status of a Generate call to its end.
  grpc::Status Generate(const std::string& key, const std::function<void(v1::GenerateRequest&)>& change = nullptr) {
    v1::GenerateRequest request;
    for (const uint32_t id : {1000, 1001, 1002}) request.mutable_token_ids()->add_ids(id);
    request.set_max_tokens(2);
    if (change) change(request);
    grpc::ClientContext context;
    Authorize(context, key);
    const auto reader = v1::GenerationService::NewStub(channel_)->Generate(&context, request);
    for (v1::GenerateResponse response; reader->Read(&response);) {
    }
    return reader->Finish();
  }
  static void Authorize(grpc::ClientContext& context, const std::string& key) {
    if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
  }

  const std::shared_ptr<grpc::Channel> channel_ =
      grpc::CreateChannel(cluster_->grpc_address(), grpc::InsecureChannelCredentials());
};

TEST_F(ApiKeys, WithoutAValidOneOnlyProbesAndMetricsAnswer) {
  const std::string wrong = keys.plain.substr(0, keys.plain.size() - 1) + (keys.plain.back() == '0' ? '1' : '0');
  for (const std::string& key : {std::string(), wrong, std::string("sk-of-another-server")}) {
    const HttpClient client = With(key);
    for (const char* path : {"/health", "/ping", "/ready", "/metrics"}) EXPECT_EQ(client.Get(path).status, 200) << path;
    for (const char* path : {"/v1/models", "/ranks", "/version", "/nothing"}) {
      const HttpReply reply = client.Get(path);
      EXPECT_EQ(reply.status, 401) << path;
      EXPECT_EQ(reply.json()["error"]["code"], "invalid_api_key") << path;
    }
    for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}) {
      EXPECT_EQ(client.Post(path, Short()).status, 401) << path;
    }
    EXPECT_EQ(Generate(key).error_code(), grpc::StatusCode::UNAUTHENTICATED);
    const auto status_of = [&](const auto& call) {
      grpc::ClientContext context;
      Authorize(context, key);
      return call(&context).error_code();
    };
    v1::AbortResponse aborted;
    v1::TokenizeResponse tokens;
    v1::DetokenizeResponse text;
    v1::ListModelsResponse models;
    v1::ForkRequest fork;
    const auto generation = v1::GenerationService::NewStub(channel_);
    const auto tokenizer = v1::TokenizerService::NewStub(channel_);
    const auto model = v1::ModelService::NewStub(channel_);
    EXPECT_EQ(status_of([&](auto* c) { return generation->Abort(c, {}, &aborted); }),
              grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(status_of([&](auto* c) { return generation->Fork(c, fork)->Finish(); }),
              grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(status_of([&](auto* c) { return tokenizer->Tokenize(c, {}, &tokens); }),
              grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(status_of([&](auto* c) { return tokenizer->Detokenize(c, {}, &text); }),
              grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(status_of([&](auto* c) { return model->ListModels(c, {}, &models); }), grpc::StatusCode::UNAUTHENTICATED);
  }
  EXPECT_EQ(With(keys.plain).Get("/v1/models").status, 200);
  EXPECT_EQ(With(keys.plain).Post("/v1/completions", Short()).status, 200);
  EXPECT_TRUE(Generate(keys.plain).ok());
}

TEST_F(ApiKeys, RequestsBeyondTheRateGet429) {
  EXPECT_EQ(With(keys.once_a_minute).Post("/v1/completions", Short()).status, 200);
  const HttpReply refused = With(keys.once_a_minute).Post("/v1/completions", Short());
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.json()["error"]["type"], "rate_limit_error");
  EXPECT_THAT(refused.body, HasSubstr("the key once has used its 1 requests per minute; try again in "));
  EXPECT_EQ(Generate(keys.once_a_minute).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << "one rate for both";
}

TEST_F(ApiKeys, WhatAKeyMayNotAskForIsDenied) {
  const HttpClient narrow = With(keys.narrow);
  const struct {
    Json change;
    const char* says;
  } cases[] = {
      {{{"winnow", {{"priority", 1}}}}, "priority: 1; requests with the key narrow may have at most 0"},
      {{{"prompt", Json::array({1, 2, 3, 4, 5, 6, 7, 8, 9})}}, "prompt tokens: 9"},
      {{{"max_tokens", 5}}, "max_tokens: 5"},
      {{{"n", 3}}, "n: 3"},
  };
  for (const auto& c : cases) {
    const HttpReply reply = narrow.Post("/v1/completions", Short(c.change));
    EXPECT_EQ(reply.status, 403) << c.says;
    EXPECT_THAT(reply.body, HasSubstr(c.says));
  }
  EXPECT_EQ(Generate(keys.narrow, [](auto& r) { r.set_priority(1); }).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  const HttpReply other = With(keys.other_model).Post("/v1/completions", Short());
  EXPECT_EQ(other.status, 403);
  EXPECT_THAT(other.body, HasSubstr("the key other may not use \\\"demo\\\""));
  EXPECT_EQ(With(keys.other_model).Post("/v1/completions", Short({{"model", "large"}})).status, 200);
  EXPECT_EQ(Generate(keys.other_model).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(Generate(keys.other_model, [](auto& r) { r.set_model("large"); }).ok());
  // Without a length of its own a request gets the key's.
  Json open = Short({{"ignore_eos", true}});
  open.erase("max_tokens");
  const HttpReply reply = narrow.Post("/v1/completions", open);
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["usage"]["completion_tokens"], 4);
}

// 96 tokens: three blocks that could come from the prefix cache.
TEST_F(ApiKeys, CachedPrefixesAreSharedWithinATenantAlone) {
  const std::string one = AddKey("--name=team-1 --tenant=team"), two = AddKey("--name=team-2 --tenant=team");
  const std::string stranger = AddKey("--name=stranger");
  ASSERT_TRUE(WaitUntil(kLong, [&] { return With(stranger).Get("/v1/models").status == 200; }));
  Json prompt = Json::array();
  for (int i = 0; i < 96; ++i) prompt.push_back(1000 + i * 7 % 512);
  const auto cached = [&](const std::string& key) {
    const HttpReply reply = With(key).Post("/v1/completions", Short({{"prompt", prompt}}));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["usage"]["prompt_tokens_details"].value("cached_tokens", 0);
  };
  EXPECT_EQ(cached(one), 0);
  EXPECT_EQ(cached(stranger), 0);
  EXPECT_GT(cached(two), 0);
}

TEST_F(ApiKeys, ChangesOfTheFileNeedNoRestart) {
  const std::string late = AddKey("--name=late");
  EXPECT_TRUE(WaitUntil(kLong, [&] { return With(late).Get("/v1/models").status == 200; }));
  OutputOf("keys revoke " + KeyFilePath() + " late");
  EXPECT_TRUE(WaitUntil(kLong, [&] { return With(late).Get("/v1/models").status == 401; }));
  EXPECT_EQ(With(keys.plain).Get("/v1/models").status, 200);
}

TEST_F(ApiKeys, AreNamedInMetricsAndNoSecretIsAnywhere) {
  ASSERT_EQ(With(keys.plain).Post("/v1/completions", Short()).status, 200);
  const Metrics metrics = cluster_->MetricsOf("router-0");
  EXPECT_GT(metrics.Value("winnow_api_key_requests_total", {{"key", "plain"}}), 0);
  EXPECT_GT(metrics.Value("winnow_api_key_tokens_total", {{"key", "plain"}, {"kind", "answer"}}), 0);
  const std::string secret = keys.plain.substr(keys.plain.rfind('-') + 1);
  EXPECT_THAT(With("").Get("/metrics").body, Not(HasSubstr(secret)));
  EXPECT_THAT(cluster_->process().Log(), Not(HasSubstr(secret)));
  EXPECT_THAT(OutputOf("keys list " + KeyFilePath()), HasSubstr("narrow id="));
}

}  // namespace
}  // namespace winnow::e2e
