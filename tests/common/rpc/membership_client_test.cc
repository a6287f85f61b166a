#include "common/rpc/membership_client.h"

#include <atomic>
#include <set>

#include "common/rpc/identity.h"
#include "common/rpc/router_memberships.h"
#include "common/rpc/rpc_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kLeaseMs = 300;
// Of which nobody waits for the end: a machine that stands still for a moment does not let it run out.
constexpr uint32_t kLongLeaseMs = 60'000;

// A router that can forget its ranks and be late with all its answers.
class FakeMembership final : public v1::MembershipService::Service {
 public:
  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override {
    if (register_takes > milliseconds(0)) std::this_thread::sleep_for(register_takes);
    const std::lock_guard lock(mutex);
    ++register_calls;
    changed.notify_all();
    if (!refusal.ok()) return refusal;
    if (mute) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "mute");
    ++registrations;
    metrics_address = request->metrics_address();
    known.insert(request->identity().incarnation());
    response->set_lease_ms(lease_ms);
    response->set_heartbeat_ms(20);
    changed.notify_all();
    return grpc::Status::OK;
  }

  grpc::Status Heartbeat(grpc::ServerContext*,
                         grpc::ServerReaderWriter<v1::HeartbeatResponse, v1::HeartbeatRequest>* stream) override {
    v1::HeartbeatRequest request;
    while (stream->Read(&request)) {
      v1::HeartbeatResponse response;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return !mute; });
        last_running = request.load().running_sequences();
        ++heartbeats;
        changed.notify_all();
        response.set_unknown(!known.contains(request.identity().incarnation()));
        for (const std::string& rank : expired) response.add_expired_cache_ranks()->set_rank(rank);
      }
      stream->Write(response);
    }
    const std::lock_guard lock(mutex);
    if (left.empty()) stream_ended_before_goodbye = true;
    changed.notify_all();
    return grpc::Status::OK;
  }

  grpc::Status Leave(grpc::ServerContext*, const v1::LeaveRequest* request, v1::LeaveResponse*) override {
    const std::lock_guard lock(mutex);
    left.insert(request->identity().incarnation());
    return grpc::Status::OK;
  }

  template <class Condition>
  [[nodiscard]] bool Await(Condition condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, seconds(20), condition);
  }

  milliseconds register_takes{0};  // set before anybody registers
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex.
  grpc::Status refusal;
  bool mute = false;
  uint32_t lease_ms = kLeaseMs;
  int register_calls = 0;
  int registrations = 0;  // of these, the ones that were accepted
  int heartbeats = 0;
  std::string metrics_address;  // of the latest registration
  std::vector<std::string> expired;
  uint32_t last_running = 0;
  bool stream_ended_before_goodbye = false;
  std::set<uint64_t> known, left;
};

class MembershipClientTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server = RpcServer::Start("127.0.0.1:0", {Named<v1::MembershipService>(&membership_)});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  MembershipClient::Options Options() {
    MembershipClient::Options options;
    options.router = *ParseHostPort(server_->address());
    *options.registration.mutable_identity() = identity_;
    options.load = [] {
      v1::RankLoad load;
      load.set_running_sequences(5);
      return load;
    };
    options.on_serving = [this](bool serving) {
      const std::lock_guard lock(membership_.mutex);
      serving_.push_back(serving);
      membership_.changed.notify_all();
    };
    options.on_refused = [this](const absl::Status& status) {
      const std::lock_guard lock(membership_.mutex);
      refused_ = status;
      membership_.changed.notify_all();
    };
    return options;
  }

  const v1::Identity identity_ = MakeIdentity("c", v1::ROLE_CACHE_RANK, "cache-0");
  FakeMembership membership_;
  std::unique_ptr<RpcServer> server_;
  // Guarded by membership_.mutex.
  std::vector<bool> serving_;
  absl::Status refused_;
};

TEST_F(MembershipClientTest, HearsOfCacheRanksWhoseLeaseHasRunOut) {
  membership_.lease_ms = kLongLeaseMs;
  MembershipClient::Options options = Options();
  std::vector<std::string> heard;  // guarded by membership_.mutex
  options.on_expired = [&](const std::vector<v1::Identity>& cache_ranks) {
    const std::lock_guard lock(membership_.mutex);
    for (const v1::Identity& rank : cache_ranks) heard.push_back(rank.rank());
    membership_.changed.notify_all();
  };
  const MembershipClient client(std::move(options));
  ASSERT_TRUE(membership_.Await([&] { return membership_.heartbeats >= 3; }));
  {
    const std::lock_guard lock(membership_.mutex);
    EXPECT_TRUE(heard.empty());
    membership_.expired = {"cache-3", "cache-5"};
  }
  ASSERT_TRUE(membership_.Await([&] { return heard.size() >= 4; })) << "with every answer";
  const std::lock_guard lock(membership_.mutex);
  EXPECT_EQ(std::vector(heard.begin(), heard.begin() + 4),
            (std::vector<std::string>{"cache-3", "cache-5", "cache-3", "cache-5"}));
}

TEST_F(MembershipClientTest, RegistersBeatsWithItsLoadAndLeaves) {
  membership_.lease_ms = kLongLeaseMs;
  {
    MembershipClient client(Options());
    ASSERT_TRUE(membership_.Await([&] { return membership_.heartbeats >= 3; }));
    const std::lock_guard lock(membership_.mutex);
    EXPECT_EQ(membership_.registrations, 1);
    EXPECT_EQ(membership_.last_running, 5u);
    EXPECT_EQ(serving_, std::vector<bool>{true});
  }
  EXPECT_TRUE(membership_.left.contains(identity_.incarnation()));
  server_->Shutdown(milliseconds(0));  // waits for the heartbeat stream's handler
  EXPECT_FALSE(membership_.stream_ended_before_goodbye) << "that would be taken for a death";
}

// On a machine without free cores the router dials the rank for longer than a call of two seconds lasts.
TEST_F(MembershipClientTest, WaitsLongerForARouterThatWasLate) {
  membership_.register_takes = milliseconds(2500);
  membership_.lease_ms = kLongLeaseMs;
  MembershipClient client(Options());
  ASSERT_TRUE(membership_.Await([&] { return !serving_.empty(); }));
}

TEST_F(MembershipClientTest, RegistersAgainWhenItIsUnknown) {
  MembershipClient client(Options());
  ASSERT_TRUE(membership_.Await([&] { return membership_.heartbeats >= 1; }));
  {
    const std::lock_guard lock(membership_.mutex);
    membership_.known.clear();
  }
  EXPECT_TRUE(membership_.Await([&] { return membership_.registrations == 2; }));
}

TEST_F(MembershipClientTest, RegistersAgainWhenTheRouterWasRestarted) {
  MembershipClient client(Options());
  ASSERT_TRUE(membership_.Await([&] { return membership_.heartbeats >= 1; }));
  const std::string address = server_->address();
  server_ = nullptr;
  {
    const std::lock_guard lock(membership_.mutex);
    membership_.known.clear();
  }
  auto server = RpcServer::Start(address, {Named<v1::MembershipService>(&membership_)});
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  EXPECT_TRUE(membership_.Await([&] { return membership_.registrations == 2; }));
}

TEST_F(MembershipClientTest, FencesItselfWhileTheRouterIsSilentAndServesAgainAfter) {
  MembershipClient client(Options());
  ASSERT_TRUE(membership_.Await([&] { return membership_.heartbeats >= 2; }));
  {
    const std::lock_guard lock(membership_.mutex);
    membership_.mute = true;
  }
  ASSERT_TRUE(membership_.Await([&] { return !serving_.back(); }));
  {
    const std::lock_guard lock(membership_.mutex);
    membership_.mute = false;
    membership_.changed.notify_all();
  }
  EXPECT_TRUE(membership_.Await([&] { return serving_.back(); }));
}

// The end of the stream would be taken for the rank's death by a router that is only late.
TEST_F(MembershipClientTest, KeepsItsStreamToARouterThatIsSilentForMoreThanALease) {
  MembershipClient client(Options());
  ASSERT_TRUE(membership_.Await([&] { return membership_.heartbeats >= 2; }));
  {
    std::unique_lock lock(membership_.mutex);
    membership_.mute = true;
    EXPECT_FALSE(
        membership_.changed.wait_for(lock, 4 * milliseconds(kLeaseMs), [&] { return membership_.register_calls > 1; }));
    membership_.mute = false;
    membership_.changed.notify_all();
  }
  ASSERT_TRUE(membership_.Await([&] { return serving_.back(); }));
  const std::lock_guard lock(membership_.mutex);
  EXPECT_EQ(membership_.register_calls, 1);
}

TEST_F(MembershipClientTest, ARefusalIsFinal) {
  membership_.refusal = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "kv_shape.head_dim differs");
  MembershipClient client(Options());
  ASSERT_TRUE(membership_.Await([&] { return !refused_.ok(); }));
  const std::lock_guard lock(membership_.mutex);
  EXPECT_EQ(refused_.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(serving_.empty());
}

TEST_F(MembershipClientTest, JoinsEveryRouterAndServesWhileOneKnowsIt) {
  FakeMembership second;
  second.lease_ms = kLongLeaseMs;
  auto other = RpcServer::Start("127.0.0.1:0", {Named<v1::MembershipService>(&second)});
  ASSERT_TRUE(other.ok()) << other.status();
  MembershipClient::Options options = Options();
  options.localize = [](const HostPort& router, v1::RegisterRequest& registration) {
    registration.set_metrics_address("towards " + router.ToString());
    return absl::OkStatus();
  };
  const HostPort first = *ParseHostPort(server_->address());
  // One that is not there keeps nobody waiting, and one that is named twice has the rank once.
  const RouterMemberships memberships({{"127.0.0.1", 1}, first, *ParseHostPort((*other)->address()), first},
                                      std::move(options));
  ASSERT_TRUE(membership_.Await([&] { return membership_.heartbeats >= 1; }));
  ASSERT_TRUE(second.Await([&] { return second.heartbeats >= 1; }));
  {
    const std::lock_guard lock(membership_.mutex);
    EXPECT_EQ(membership_.registrations, 1);
    EXPECT_EQ(membership_.metrics_address, "towards " + server_->address());
    const std::lock_guard other_lock(second.mutex);
    EXPECT_EQ(second.metrics_address, "towards " + (*other)->address());
  }
  server_ = nullptr;
  int heartbeats = 0;
  {
    const std::lock_guard lock(second.mutex);
    heartbeats = second.heartbeats;
  }
  // Longer than half a lease of the one that is lost.
  ASSERT_TRUE(second.Await([&] { return second.heartbeats >= heartbeats + 12; }));
  const std::lock_guard lock(membership_.mutex);
  EXPECT_EQ(serving_, std::vector<bool>{true});
}

TEST_F(MembershipClientTest, JoinsRoutersThatAreFoundLaterAndStaysWithThoseThatAnswer) {
  membership_.lease_ms = kLongLeaseMs;
  FakeMembership second;
  auto other = RpcServer::Start("127.0.0.1:0", {Named<v1::MembershipService>(&second)});
  ASSERT_TRUE(other.ok()) << other.status();
  const HostPort first_address = *ParseHostPort(server_->address()),
                 second_address = *ParseHostPort((*other)->address());
  RouterMemberships memberships({}, Options());
  memberships.SetDiscovered({first_address});
  ASSERT_TRUE(membership_.Await([&] { return membership_.heartbeats >= 1; }));
  memberships.SetDiscovered({first_address, second_address});
  ASSERT_TRUE(second.Await([&] { return second.heartbeats >= 1; }));
  memberships.SetDiscovered({second_address});
  int heartbeats = 0;
  {
    const std::lock_guard lock(membership_.mutex);
    heartbeats = membership_.heartbeats;
  }
  EXPECT_TRUE(membership_.Await([&] { return membership_.heartbeats > heartbeats + 4; })) << "it answers: it stays";
}

TEST_F(MembershipClientTest, ARefusalByOneRouterIsFinal) {
  FakeMembership second;
  second.refusal = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "kv_shape.head_dim differs");
  auto other = RpcServer::Start("127.0.0.1:0", {Named<v1::MembershipService>(&second)});
  ASSERT_TRUE(other.ok()) << other.status();
  const RouterMemberships memberships({*ParseHostPort(server_->address()), *ParseHostPort((*other)->address())},
                                      Options());
  ASSERT_TRUE(membership_.Await([&] { return !refused_.ok(); }));
}

TEST_F(MembershipClientTest, ARegistrationThatCannotBeCompletedIsRefused) {
  MembershipClient::Options options = Options();
  options.localize = [](const HostPort&, v1::RegisterRequest&) {
    return absl::FailedPreconditionError("only this machine reaches it");
  };
  MembershipClient client(std::move(options));
  ASSERT_TRUE(membership_.Await([&] { return !refused_.ok(); }));
  const std::lock_guard lock(membership_.mutex);
  EXPECT_EQ(membership_.register_calls, 0);
}

TEST_F(MembershipClientTest, WaitsForARouterThatStartsLater) {
  const std::string address = server_->address();
  MembershipClient::Options options = Options();
  server_ = nullptr;
  MembershipClient client(std::move(options));
  auto server = RpcServer::Start(address, {Named<v1::MembershipService>(&membership_)});
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  EXPECT_TRUE(membership_.Await([&] { return membership_.registrations == 1; }));
}

}  // namespace
}  // namespace winnow
