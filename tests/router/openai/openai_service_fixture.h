#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "router/http/http_server.h"
#include "router/openai/json/api_error.h"
#include "router/openai/json/json_document.h"
#include "router/openai/openai_service.h"
#include "tests/router/http/test_client.h"
#include "tests/router/openai/fake_text_codec.h"
#include "tests/router/openai/scripted_generation.h"

namespace winnow {

// A chat that may be answered by a call; its last brace is to come.
inline constexpr char kToolChat[] =
    R"({"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function", "function": {"name": "f"}}])";

// The whole front end on a real socket; the test plays the dispatcher.
class OpenAiServiceTest : public ::testing::Test {
 protected:
  void SetUp() override { StartServer({}); }

  void StartServer(HttpServerOptions http, OpenAiOptions options = {}) {
    server_.reset();
    OpenAiCallbacks callbacks;
    callbacks.ready = [this] { return ready_ ? absl::OkStatus() : absl::UnavailableError("no inference rank"); };
    callbacks.metrics = [] { return std::string("winnow_up 1\n"); };
    callbacks.hooks.on_time_to_first_token = [this](double) { ++first_tokens_; };
    callbacks.hooks.on_inter_token_latency = [this](double) { ++gaps_; };
    callbacks.hooks.on_generation = [this](std::string_view endpoint, std::string_view outcome, uint32_t, uint32_t,
                                           double) {
      std::lock_guard lock(mutex_);
      outcomes_.push_back(absl::StrCat(AbslSv(endpoint), " ", AbslSv(outcome)));
    };
    callbacks.hooks.on_answer = [this](int http_status) {
      std::lock_guard lock(mutex_);
      answers_.push_back(http_status);
    };
    ServedModel model{.id = "org/tiny",
                      .max_context_tokens = 100'000,
                      .vocab_size = FakeTextCodec::kVocabSize,
                      .max_budget_tokens = 4096,
                      .default_selection = {},
                      .chat_formats = {.tools = ToolFormat::kHermes, .reasoning = ReasoningFormat::kThink},
                      .aliases = {"small"}};
    service_ = std::make_unique<OpenAiService>(model, &codec_, &generation_, callbacks, options);
    routes_ = RouteTable(HttpErrorResponse);
    service_->AddRoutes(&routes_);
    http.port = 0;
    auto server = HttpServer::Start(
        http, [this](std::shared_ptr<HttpExchange> exchange) { routes_.Dispatch(std::move(exchange)); }, {},
        HttpErrorResponse);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  void TearDown() override { server_.reset(); }

  uint16_t port() const { return server_->port(); }

  static Json Error(const TestClient::Response& response) { return Json::parse(response.body).at("error"); }

  std::vector<std::string> Outcomes() {
    server_->Stop(std::chrono::minutes(1));
    return outcomes_;
  }

  FakeTextCodec codec_;
  ScriptedGeneration generation_;
  std::unique_ptr<OpenAiService> service_;
  RouteTable routes_;
  std::unique_ptr<HttpServer> server_;

  std::atomic<bool> ready_ = true;
  std::atomic<int> first_tokens_ = 0;
  std::atomic<int> gaps_ = 0;
  std::mutex mutex_;
  std::vector<std::string> outcomes_;
  std::vector<int> answers_;  // of requests to generate
};

}  // namespace winnow
