#include "router/router.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "common/rpc/admin_service.h"
#include "common/rpc/channel.h"
#include "common/rpc/identity.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/router/dispatch/scripted_rank.h"
#include "tests/router/http/test_client.h"
#include "winnow/v1/generation.grpc.pb.h"
#include "winnow/v1/membership.grpc.pb.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

constexpr char kModelDir[] = "deploy/models/demo";

// The whole router with the demo model's tokenizer; ranks are scripted and register over gRPC.
class RouterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RouterOptions options;
    options.model_dir = kModelDir;
    options.identity.set_cluster("test");
    options.identity.set_role(v1::ROLE_ROUTER);
    options.http.port = 0;
    auto router = Router::Create(options, &metrics_);
    ASSERT_TRUE(router.ok()) << router.status();
    router_ = *std::move(router);
    auto server = RpcServer::Start("127.0.0.1:0", router_->services());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = NewChannel(server_->address());
  }
  void TearDown() override {
    metrics_.ClearSources();
    if (router_) router_->Drain(std::chrono::milliseconds(0));
    if (server_) server_->Shutdown(std::chrono::milliseconds(0));
    router_.reset();
  }

  grpc::Status Register(const v1::Identity& identity, uint32_t vocab_size = 4096) {
    v1::RegisterRequest request;
    *request.mutable_identity() = identity;
    if (identity.role() == v1::ROLE_INFERENCE_RANK) {
      request.mutable_limits()->set_vocab_size(vocab_size);
      request.mutable_limits()->set_max_context_tokens(100);
      request.mutable_limits()->set_max_budget_tokens(512);
    }
    grpc::ClientContext context;
    v1::RegisterResponse response;
    return v1::MembershipService::NewStub(channel_)->Register(&context, request, &response);
  }
  // One that says who it is and has nothing to do.
  v1::Identity CacheRank() {
    if (cache_server_ == nullptr) {
      cache_identity_ = MakeIdentity("test", v1::ROLE_CACHE_RANK, "cache-0");
      v1::GetServerInfoResponse info;
      *info.mutable_identity() = cache_identity_;
      cache_admin_ = std::make_unique<AdminServiceImpl>(std::move(info), [] { return v1::RankLoad(); });
      cache_server_ = *RpcServer::Start("127.0.0.1:0", {Named<v1::AdminService>(cache_admin_.get())});
      cache_identity_.set_address(cache_server_->address());
    }
    return cache_identity_;
  }
  // The inference ranks have said that they reach the cache ranks.
  [[nodiscard]] bool AwaitReady() {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!router_->Ready().ok() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    return router_->Ready().ok();
  }

  v1::Identity cache_identity_;
  std::unique_ptr<AdminServiceImpl> cache_admin_;
  std::unique_ptr<RpcServer> cache_server_;
  MetricsRegistry metrics_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(RouterTest, IsReadyOnceARankOfEachKindIsThere) {
  EXPECT_EQ(router_->model().id, "demo");
  EXPECT_EQ(router_->model().vocab_size, 4096u);
  EXPECT_EQ(router_->model().max_context_tokens, 32768u);
  EXPECT_THAT(std::string(router_->Ready().message()), HasSubstr("no inference rank"));
  ScriptedRank rank("inference-0");
  ASSERT_TRUE(Register(rank.identity()).ok());
  EXPECT_THAT(std::string(router_->Ready().message()), HasSubstr("no cache rank"));
  ASSERT_TRUE(Register(CacheRank()).ok());
  EXPECT_TRUE(AwaitReady());
  EXPECT_EQ(router_->model().max_context_tokens, 100u);
  EXPECT_EQ(router_->model().max_budget_tokens, 512u);
}

TEST_F(RouterTest, IsNotReadyForRanksOfAnotherVocabulary) {
  ScriptedRank rank("inference-0");
  ASSERT_TRUE(Register(rank.identity(), 5000).ok());
  ASSERT_TRUE(Register(CacheRank()).ok());
  EXPECT_THAT(std::string(router_->Ready().message()), HasSubstr("5000"));
}

TEST_F(RouterTest, ServesARequestFromTextToText) {
  ASSERT_TRUE(router_->StartHttp().ok());
  EXPECT_THAT(router_->http_address(), HasSubstr("127.0.0.1:"));
  const auto tokenizer = Tokenizer::Load(std::string(kModelDir) + "/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok());
  const std::string answer = "Hello, wörld";
  const std::vector<uint32_t> ids = *(*tokenizer)->Encode(answer, false);
  ScriptedRank rank("inference-0", [&](ScriptedRank& self, const ScriptedRank::Submit& submit) {
    for (uint32_t i = 0; i < ids.size(); ++i) self.SendTokens(submit.request_id(), i, {ids[i]});
    self.SendFinished(submit.request_id(), v1::FINISH_REASON_STOP);
  });
  ASSERT_TRUE(Register(rank.identity()).ok());
  ASSERT_TRUE(Register(CacheRank()).ok());
  ASSERT_TRUE(AwaitReady());

  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.set_text("Say hello.");
  const auto reader = v1::GenerationService::NewStub(channel_)->Generate(&context, request);
  std::string text;
  v1::GenerateResponse response;
  while (reader->Read(&response)) text += response.delta().text();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(text, answer);
  EXPECT_EQ(response.usage().completion_tokens(), ids.size());
  const std::string series = metrics_.RenderText();
  EXPECT_THAT(series, HasSubstr("winnow_requests_total{api=\"grpc\",code=\"OK\",model_name=\"demo\"} 1\n"));
  EXPECT_THAT(series, HasSubstr("winnow_num_requests_running 0"));
  EXPECT_THAT(series, HasSubstr("winnow_router_ranks{kind=\"cache\"} 1"));
}

TEST(RouterPage, IsServedUnlessTheOptionsSayNo) {
  for (const bool serves_page : {true, false}) {
    MetricsRegistry metrics;
    RouterOptions options;
    options.model_dir = kModelDir;
    options.http.port = 0;
    options.serves_page = serves_page;
    const auto router = Router::Create(options, &metrics);
    ASSERT_TRUE(router.ok()) << router.status();
    ASSERT_TRUE((*router)->StartHttp().ok());
    const std::string address = (*router)->http_address();
    TestClient client(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    client.Request("GET", "/");
    EXPECT_EQ(client.ReadResponse().status, serves_page ? 200 : 404);
    metrics.ClearSources();
  }
}

TEST_F(RouterTest, IsNotReadyWithoutACacheRankAndLetsRequestsWaitForOne) {
  ScriptedRank rank("inference-0");
  ASSERT_TRUE(Register(rank.identity()).ok());
  ASSERT_TRUE(Register(CacheRank()).ok());
  ASSERT_TRUE(AwaitReady());
  {
    grpc::ClientContext context;
    v1::LeaveRequest leave;
    *leave.mutable_identity() = CacheRank();
    v1::LeaveResponse left;
    ASSERT_TRUE(v1::MembershipService::NewStub(channel_)->Leave(&context, leave, &left).ok());
  }
  EXPECT_FALSE(router_->Ready().ok());
  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.set_text("Say hello.");
  const auto reader = v1::GenerationService::NewStub(channel_)->Generate(&context, request);
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (router_->load().waiting_sequences() == 0 && std::chrono::steady_clock::now() < limit) {
    std::this_thread::yield();
  }
  ASSERT_TRUE(Register(CacheRank()).ok());
  rank.SendFinished(rank.AwaitSubmit(1).request_id());
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

// A request that a silent rank has, while the router drains on a thread of its own.
class DrainTest : public RouterTest {
 protected:
  using Reader = std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>;

  void SetUp() override {
    RouterTest::SetUp();
    ASSERT_TRUE(router_->StartHttp().ok());
    ASSERT_TRUE(Register(rank_.identity()).ok());
    ASSERT_TRUE(Register(CacheRank()).ok());
    ASSERT_TRUE(AwaitReady());
    reader_ = Generate(&context_);
    id_ = rank_.AwaitSubmit(1).request_id();
  }
  Reader Generate(grpc::ClientContext* context) {
    v1::GenerateRequest request;
    request.set_text("Say hello.");
    return v1::GenerationService::NewStub(channel_)->Generate(context, request);
  }
  static grpc::Status Finish(grpc::ClientReader<v1::GenerateResponse>& reader) {
    v1::GenerateResponse response;
    while (reader.Read(&response)) continue;
    return reader.Finish();
  }
  std::thread Drain(std::chrono::milliseconds grace) {
    std::thread drain([this, grace] { router_->Drain(grace, [this] { return hurry_.load(); }); });
    while (std::string(router_->Ready().message()) != kStopping) std::this_thread::yield();
    return drain;
  }

  static constexpr std::string_view kStopping = "the router is stopping";
  ScriptedRank rank_{"inference-0"};
  std::atomic<bool> hurry_{false};
  grpc::ClientContext context_;
  Reader reader_;
  uint64_t id_ = 0;
};

TEST_F(DrainTest, WhatIsUnderWayGoesOnAndNothingNewIsTaken) {
  std::thread drain = Drain(std::chrono::hours(1));
  grpc::ClientContext late;
  const grpc::Status refused = Finish(*Generate(&late));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(refused.error_message(), kStopping);
  rank_.SendFinished(id_, v1::FINISH_REASON_STOP);
  drain.join();
  EXPECT_TRUE(Finish(*reader_).ok());
}

TEST_F(DrainTest, WhatIsNotDoneInTimeEndsWithUnavailable) {
  Drain(std::chrono::milliseconds(20)).join();
  const grpc::Status status = Finish(*reader_);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), kStopping);
}

TEST_F(DrainTest, AHurryEndsTheGracePeriod) {
  std::thread drain = Drain(std::chrono::hours(1));
  hurry_ = true;
  drain.join();
  EXPECT_EQ(Finish(*reader_).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(RouterCreateTest, SaysWhatIsWrongWithAModelDirectory) {
  MetricsRegistry metrics;
  RouterOptions options;
  options.model_dir = "no/such/model";
  EXPECT_THAT(std::string(Router::Create(options, &metrics).status().message()), HasSubstr("no/such/model"));
}

}  // namespace
}  // namespace winnow
