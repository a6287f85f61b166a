#include "router/membership/membership_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

namespace winnow {
namespace {

class MembershipServiceTest : public ::testing::Test {
 protected:
  MembershipServiceTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::MembershipService::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
  }
  ~MembershipServiceTest() override { server_->Shutdown(std::chrono::system_clock::now()); }

  static v1::Identity Cache() {
    v1::Identity identity;
    identity.set_cluster("c");
    identity.set_role(v1::ROLE_CACHE_RANK);
    identity.set_rank("cache-0");
    identity.set_incarnation(1);
    identity.set_address("127.0.0.1:1");
    return identity;
  }
  grpc::Status Register(const v1::Identity& identity) {
    grpc::ClientContext context;
    v1::RegisterRequest request;
    *request.mutable_identity() = identity;
    v1::RegisterResponse response;
    return stub_->Register(&context, request, &response);
  }

  Registry registry_{{.cluster = "c"}};
  MembershipService service_{&registry_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::MembershipService::Stub> stub_;
};

TEST_F(MembershipServiceTest, ARankIsThereUntilItsHeartbeatStreamBreaks) {
  ASSERT_TRUE(Register(Cache()).ok());
  std::mutex mutex;
  std::condition_variable changed;
  bool gone = false;
  auto subscription = registry_.Subscribe([&](const MembershipSnapshot& snapshot) {
    std::lock_guard lock(mutex);
    gone = snapshot.ranks.empty();
    changed.notify_all();
  });

  grpc::ClientContext context;
  auto stream = stub_->Heartbeat(&context);
  v1::HeartbeatRequest beat;
  *beat.mutable_identity() = Cache();
  beat.mutable_load()->set_running_sequences(4);
  v1::HeartbeatResponse answer;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(stream->Write(beat));
    ASSERT_TRUE(stream->Read(&answer));
    EXPECT_FALSE(answer.unknown());
  }
  EXPECT_EQ(registry_.Snapshot().ranks.at(0).load.running_sequences(), 4u);

  context.TryCancel();
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(30), [&] { return gone; }));
}

TEST_F(MembershipServiceTest, AnUnknownIncarnationIsToldSo) {
  grpc::ClientContext context;
  auto stream = stub_->Heartbeat(&context);
  v1::HeartbeatRequest beat;
  *beat.mutable_identity() = Cache();
  v1::HeartbeatResponse answer;
  ASSERT_TRUE(stream->Write(beat));
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_TRUE(answer.unknown());
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(MembershipServiceTest, WatchSendsTheTableNowAndAtEachChange) {
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, {});
  v1::WatchResponse table;
  ASSERT_TRUE(reader->Read(&table));
  EXPECT_EQ(table.members_size(), 0);
  ASSERT_TRUE(Register(Cache()).ok());
  ASSERT_TRUE(reader->Read(&table));
  ASSERT_EQ(table.members_size(), 1);
  EXPECT_EQ(table.members(0).identity().rank(), "cache-0");
  const uint64_t version = table.membership_version();

  grpc::ClientContext leave_context;
  v1::LeaveRequest leave;
  *leave.mutable_identity() = Cache();
  v1::LeaveResponse left;
  ASSERT_TRUE(stub_->Leave(&leave_context, leave, &left).ok());
  ASSERT_TRUE(reader->Read(&table));
  EXPECT_EQ(table.members_size(), 0);
  EXPECT_GT(table.membership_version(), version);
  context.TryCancel();
  EXPECT_FALSE(reader->Read(&table));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(MembershipServiceTest, ARankAdvertisesAnAddressThatSomebodyCanConnectTo) {
  v1::Identity wildcard = Cache();
  for (const char* address : {"0.0.0.0:4000", "[::]:4000", "nonsense"}) {
    wildcard.set_address(address);
    EXPECT_EQ(Register(wildcard).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << address;
  }
  EXPECT_TRUE(registry_.Snapshot().ranks.empty());
}

TEST_F(MembershipServiceTest, ErrorsKeepTheirCode) {
  v1::Identity other = Cache();
  other.set_cluster("other");
  EXPECT_EQ(Register(other).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace winnow
