#include "router/membership/reachability.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "common/rpc/admin_service.h"
#include "common/rpc/identity.h"
#include "common/rpc/rpc_server.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A process that says who it is, and dials others when it is asked to.
class Process {
 public:
  Process(v1::Role role, const std::string& name) : identity_(MakeIdentity("c", role, name)) {
    v1::GetServerInfoResponse info;
    *info.mutable_identity() = identity_;
    admin_ = std::make_unique<AdminServiceImpl>(std::move(info), [] { return v1::RankLoad(); });
    server_ = *RpcServer::Start("127.0.0.1:0", {Named<v1::AdminService>(admin_.get())});
    identity_.set_address(server_->address());
  }
  v1::RegisterRequest Registration() const {
    v1::RegisterRequest request;
    *request.mutable_identity() = identity_;
    if (identity_.role() == v1::ROLE_INFERENCE_RANK) {
      request.mutable_limits()->set_max_context_tokens(4096);
      request.mutable_limits()->set_vocab_size(512);
    }
    return request;
  }
  const v1::Identity& identity() const { return identity_; }
  void Disappear() { server_ = nullptr; }
  void ComeBack() { server_ = *RpcServer::Start(identity_.address(), {Named<v1::AdminService>(admin_.get())}); }

 private:
  v1::Identity identity_;
  std::unique_ptr<AdminServiceImpl> admin_;
  std::unique_ptr<RpcServer> server_;
};

class ReachabilityTest : public ::testing::Test {
 protected:
  absl::Status DialBack(const Process& process) {
    std::promise<absl::Status> promise;
    reachability_.DialBack(process.Registration(), milliseconds(20'000),
                           [&](const absl::Status& status) { promise.set_value(status); });
    return promise.get_future().get();
  }
  const RankRecord Record(const Process& process) const {
    const MembershipSnapshot snapshot = registry_.Snapshot();
    const RankRecord* record = snapshot.Find(process.identity().role(), KeyOf(process.identity()));
    return record == nullptr ? RankRecord() : *record;
  }
  template <class Condition>
  [[nodiscard]] bool Await(Condition condition) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition() && std::chrono::steady_clock::now() < limit) {
      reachability_.Sweep();
      std::this_thread::sleep_for(milliseconds(5));
    }
    return condition();
  }

  Process inference_{v1::ROLE_INFERENCE_RANK, "inference-0"};
  Process cache_{v1::ROLE_CACHE_RANK, "cache-0"};
  Registry registry_{{.cluster = "c", .reachability_is_checked = true}};
  Reachability reachability_{
      {.dial_timeout = milliseconds(5'000), .sweep = milliseconds(10), .recheck = milliseconds(20)}, &registry_};
};

TEST_F(ReachabilityTest, DialsARankBeforeItCounts) {
  EXPECT_TRUE(DialBack(cache_).ok());
  EXPECT_THAT(reachability_.unreachable(), IsEmpty());
  cache_.Disappear();
  EXPECT_THAT(std::string(DialBack(cache_).message()), HasSubstr("cannot reach cache-0 at"));
  ASSERT_EQ(reachability_.unreachable().size(), 1u);
  EXPECT_EQ(reachability_.unreachable().front().identity.rank(), "cache-0");
  EXPECT_THAT(reachability_.Reasons(), HasSubstr("cannot reach cache-0 at"));
  cache_.ComeBack();
  EXPECT_TRUE(DialBack(cache_).ok());
  EXPECT_EQ(reachability_.Reasons(), "");
}

TEST_F(ReachabilityTest, AnInferenceRankReachesACacheRankOnceItHasSaidSo) {
  cache_.Disappear();
  ASSERT_TRUE(registry_.Register(inference_.Registration()).ok());
  ASSERT_TRUE(registry_.Register(cache_.Registration()).ok());
  ASSERT_TRUE(Await([&] { return reachability_.Reasons() != ""; }));
  EXPECT_THAT(Record(inference_).unreached, ElementsAre(KeyOf(cache_.identity())));
  EXPECT_THAT(reachability_.Reasons(),
              HasSubstr("inference-0: cannot reach cache-0 at " + cache_.identity().address()));
  cache_.ComeBack();
  EXPECT_TRUE(Await([&] { return Record(inference_).unreached.empty() && reachability_.Reasons().empty(); }));
  cache_.Disappear();
  EXPECT_TRUE(Await([&] { return !Record(inference_).unreached.empty(); }));
}

TEST_F(ReachabilityTest, ASuspectRankIsDialedUntilItAnswers) {
  ASSERT_TRUE(registry_.Register(cache_.Registration()).ok());
  cache_.Disappear();
  registry_.ReportUnreachable(cache_.identity());
  v1::HeartbeatRequest beat;
  *beat.mutable_identity() = cache_.identity();
  registry_.Heartbeat(registry_.NewStream(), beat);
  EXPECT_TRUE(Record(cache_).suspect) << "heartbeats only show that the rank reaches the router";
  cache_.ComeBack();
  EXPECT_TRUE(Await([&] { return !Record(cache_).suspect; }));
}

}  // namespace
}  // namespace winnow
