#include "common/rpc/dial.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/admin_service.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/identity.h"
#include "common/rpc/rpc_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using testing::HasSubstr;

constexpr std::chrono::milliseconds kPatience{20'000};

class DialTest : public testing::Test {
 protected:
  void SetUp() override {
    v1::GetServerInfoResponse info;
    *info.mutable_identity() = identity_;
    admin_ = std::make_unique<AdminServiceImpl>(std::move(info), [] { return v1::RankLoad(); });
    auto server = RpcServer::Start("127.0.0.1:0", {Named<v1::AdminService>(admin_.get())});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    identity_.set_address(server_->address());
  }

  v1::Identity identity_ = MakeIdentity("c", v1::ROLE_INFERENCE_RANK, "inference-0");
  std::unique_ptr<AdminServiceImpl> admin_;
  std::unique_ptr<RpcServer> server_;
};

TEST_F(DialTest, FindsTheProcessThatItIsTold) {
  EXPECT_TRUE(Dial(identity_, "", kPatience).ok());
  v1::Identity hosted = MakeIdentity("c", v1::ROLE_CACHE_RANK, "cache-of-inference-0");
  hosted.set_address(identity_.address());
  EXPECT_TRUE(Dial(hosted, "inference-0", kPatience).ok());
}

TEST_F(DialTest, IsNotContentWithAnotherProcess) {
  v1::Identity earlier = identity_;
  earlier.set_incarnation(identity_.incarnation() + 1);
  const absl::Status status = Dial(earlier, "", kPatience);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(ToString(identity_) + " of cluster \"c\" answers there"));
}

// A machine whose cores are busy accepts connections, and the process comes to them later.
TEST_F(DialTest, ReachesAProcessThatIsSlowToTakeAConnection) {
  grpc::ServerBuilder builder;
  builder.RegisterService(admin_.get());
  const std::unique_ptr<grpc::Server> slow = builder.BuildAndStart();
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const absl::Cleanup closes_listener = [&] { close(listener); };
  sockaddr_in name{
      .sin_family = AF_INET, .sin_port = 0, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t length = sizeof name;
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&name), &length), 0);
  const std::jthread accepts([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    grpc::AddInsecureChannelFromFd(slow.get(), accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  });
  v1::Identity there = identity_;
  there.set_address(absl::StrCat("127.0.0.1:", ntohs(name.sin_port)));
  EXPECT_EQ(Dial(there, "", kPatience), absl::OkStatus());
}

TEST_F(DialTest, SaysThatNobodyAnswers) {
  server_ = nullptr;
  const absl::Status status = Dial(identity_, "", kPatience);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot reach inference-0 at " + identity_.address()));
}

TEST_F(DialTest, AProcessIsAskedWhomItReaches) {
  const auto stub = v1::AdminService::NewStub(NewChannel(server_->address()));
  const auto reach = [&](const v1::Identity& target) {
    grpc::ClientContext context;
    SetTimeout(context, kPatience);
    v1::ReachRequest request;
    *request.mutable_target() = target;
    v1::ReachResponse response;
    return stub->Reach(&context, request, &response);
  };
  EXPECT_TRUE(reach(identity_).ok());
  v1::Identity nobody = MakeIdentity("c", v1::ROLE_CACHE_RANK, "cache-0");
  nobody.set_address("127.0.0.1:1");
  EXPECT_EQ(reach(nobody).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(reach(nobody).error_message(), HasSubstr("cannot reach cache-0 at 127.0.0.1:1"));
}

}  // namespace
}  // namespace winnow
