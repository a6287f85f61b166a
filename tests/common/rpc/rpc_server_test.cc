#include "common/rpc/rpc_server.h"

#include "common/rpc/admin_service.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/identity.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/health_check_service_interface.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using testing::HasSubstr;

TEST(RpcServer, ServesOnAPortOfTheSystemsChoice) {
  v1::GetServerInfoResponse info;
  info.set_version("1.2.3");
  AdminServiceImpl admin(info, [] {
    v1::RankLoad load;
    load.set_running_sequences(7);
    return load;
  });
  auto server = RpcServer::Start("127.0.0.1:0", {Named<v1::AdminService>(&admin)});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT((*server)->address(), testing::MatchesRegex("127\\.0\\.0\\.1:[1-9][0-9]*"));
  auto stub = v1::AdminService::NewStub(NewChannel((*server)->address()));
  {
    grpc::ClientContext context;
    SetTimeout(context, std::chrono::seconds(10));
    v1::GetServerInfoResponse answer;
    ASSERT_TRUE(stub->GetServerInfo(&context, {}, &answer).ok());
    EXPECT_EQ(answer.version(), "1.2.3");
  }
  grpc::ClientContext context;
  SetTimeout(context, std::chrono::seconds(10));
  v1::GetLoadResponse answer;
  ASSERT_TRUE(stub->GetLoad(&context, {}, &answer).ok());
  EXPECT_EQ(answer.load().running_sequences(), 7u);
}

TEST(AdminService, RecordsTheTimelinesOfItsProcess) {
  Timeline timeline;
  v1::GetServerInfoResponse info;
  info.mutable_identity()->set_rank("cache-7");
  AdminServiceImpl admin(info, [] { return v1::RankLoad(); }, {{"data plane", &timeline}});
  v1::StartTimelineResponse started;
  ASSERT_TRUE(admin.StartTimeline(nullptr, nullptr, &started).ok());
  { const TimelineSpan span(timeline, Span::kSelect, 5, 11, 2); }
  v1::StopTimelineResponse stopped;
  ASSERT_TRUE(admin.StopTimeline(nullptr, nullptr, &stopped).ok());
  EXPECT_EQ(stopped.identity().rank(), "cache-7");
  ASSERT_EQ(stopped.threads_size(), 1);
  ASSERT_EQ(stopped.threads(0).events_size(), 1);
  const v1::TimelineEvent& event = stopped.threads(0).events(0);
  EXPECT_EQ(event.span(), "select");
  EXPECT_EQ(event.layer(), 5u);
  EXPECT_EQ(event.plan(), 11u);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double age_s = std::chrono::duration<double>(now).count() - static_cast<double>(event.start_unix_nanos()) / 1e9;
  EXPECT_GE(age_s, -1);
  EXPECT_LT(age_s, 3600);
}

TEST(AdminService, SaysThatThereIsNothingToRecord) {
  AdminServiceImpl admin({}, [] { return v1::RankLoad(); });
  v1::StartTimelineResponse started;
  EXPECT_EQ(admin.StartTimeline(nullptr, nullptr, &started).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

// A stream of the reflection service blocks a thread for as long as the client likes.
TEST(RpcServer, RefusesCallsBeyondItsThreadsAndServesTheRest) {
  auto server = RpcServer::Start("127.0.0.1:0", {});
  ASSERT_TRUE(server.ok()) << server.status();
  grpc::GenericStub stub(NewChannel((*server)->address()));
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
    grpc::Status status;
  };
  constexpr size_t kCalls = 1000, kServed = 256;
  grpc::CompletionQueue queue;
  std::vector<Call> calls(kCalls);
  for (Call& call : calls) {
    call.stream =
        stub.PrepareCall(&call.context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
    call.stream->StartCall(nullptr);
    call.stream->Finish(&call.status, &call);
  }
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(30);
  const auto ended = [&] {
    void* tag = nullptr;
    bool ok = false;
    do {
      if (queue.AsyncNext(&tag, &ok, deadline) != grpc::CompletionQueue::GOT_EVENT) return static_cast<Call*>(nullptr);
    } while (tag == nullptr);  // a call that has started
    return static_cast<Call*>(tag);
  };
  for (size_t i = 0; i < kCalls - kServed; ++i) {
    const Call* call = ended();
    ASSERT_NE(call, nullptr) << i << " calls were refused";
    EXPECT_EQ(call->status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  for (Call& call : calls) call.context.TryCancel();
  for (size_t i = 0; i < kServed; ++i) ASSERT_NE(ended(), nullptr);
  queue.Shutdown();
}

TEST(RpcServer, TwoServersCannotShareAPort) {
  auto first = RpcServer::Start("127.0.0.1:0", {});
  ASSERT_TRUE(first.ok()) << first.status();
  auto second = RpcServer::Start((*first)->address(), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->address()));
}

TEST(RpcServer, AnAddressThatIsNotOursIsAnError) {
  EXPECT_EQ(RpcServer::Start("192.0.2.1:0", {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RpcServer::Start("nonsense", {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GrpcStatus, CodesAndMessagesSurviveBothWays) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  }
}

TEST(Identity, EachStartIsAnother) {
  const v1::Identity a = MakeIdentity("c", v1::ROLE_CACHE_RANK, "cache-0");
  const v1::Identity b = MakeIdentity("c", v1::ROLE_CACHE_RANK, "cache-0");
  EXPECT_NE(a.incarnation(), b.incarnation());
  EXPECT_NE(a.incarnation(), 0u);
  EXPECT_THAT(ToString(a), testing::MatchesRegex("cache-0@[0-9a-f]{16}"));
}

}  // namespace
}  // namespace winnow
