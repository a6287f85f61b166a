// Against a real etcd, which each test starts.
#include "common/discovery/registry_presence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>

#include "common/discovery/published_record.h"
#include "tests/support/etcd_server.h"
#include "tests/support/test_certificates.h"

namespace winnow {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

const RegistryRecord kRouter{v1::ROLE_ROUTER, "router-0", 1, "127.0.0.1:8001", "127.0.0.1:8000"};
const HostPort kRouterAddress{"127.0.0.1", 8001};

RegistryRecord Rank(uint64_t incarnation, const std::string& name = "cache-0") {
  return {v1::ROLE_CACHE_RANK, name, incarnation, "127.0.0.1:8002", ""};
}

// A process that is in the registry, and what it has been told.
class Present {
 public:
  Present(const RegistryUrl& url, std::vector<RegistryRecord> records, TlsFiles tls = {}) {
    RegistryPresence::Options options;
    options.registry = url;
    options.tls = std::move(tls);
    options.cluster = "c";
    options.lease = seconds(3);
    options.records = [this, records](const HostPort&) -> absl::StatusOr<std::vector<RegistryRecord>> {
      const std::lock_guard lock(mutex_);
      if (!records_error_.ok()) return records_error_;
      return records;
    };
    options.on_routers = [this](std::vector<HostPort> routers) {
      const std::lock_guard lock(mutex_);
      routers_ = std::move(routers);
      changed_.notify_all();
    };
    options.on_refused = [this](const absl::Status& status) {
      const std::lock_guard lock(mutex_);
      refused_ = status;
      changed_.notify_all();
    };
    presence_ = std::make_unique<RegistryPresence>(std::move(options));
  }

  [[nodiscard]] bool AwaitRouters(const std::vector<HostPort>& routers) {
    return Await([&] { return routers_ == routers; });
  }
  [[nodiscard]] bool AwaitRefusal() {
    return Await([&] { return refused_.has_value(); });
  }
  // For longer than its lease.
  [[nodiscard]] bool AwaitAway() {
    return Await([&] { return presence_->state().away_seconds > 3.5; });
  }
  bool holds() const { return presence_->Holds(); }
  [[nodiscard]] bool AwaitConnected(bool connected) {
    return Await([&] { return presence_->state().connected == connected; });
  }
  std::optional<std::vector<HostPort>> routers() {
    const std::lock_guard lock(mutex_);
    return routers_;
  }
  absl::Status refused() {
    const std::lock_guard lock(mutex_);
    return refused_.value_or(absl::OkStatus());
  }
  RegistryPresence::State state() const { return presence_->state(); }

 private:
  template <class Condition>
  bool Await(Condition condition) {
    const auto limit = std::chrono::steady_clock::now() + seconds(60);
    std::unique_lock lock(mutex_);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > limit) return false;
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
    return true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  absl::Status records_error_;
  std::optional<std::vector<HostPort>> routers_;
  std::optional<absl::Status> refused_;
  std::unique_ptr<RegistryPresence> presence_;
};

class RegistryPresenceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!EtcdServer::IsInstalled()) GTEST_SKIP() << "no etcd here (Debian's etcd-server)";
    etcd_.emplace();
  }
  std::vector<std::string> Keys() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : etcd_->Values()) keys.push_back(key);
    return keys;
  }
  std::string ValueOf(const RegistryRecord& record) const {
    for (const auto& [key, value] : etcd_->Values()) {
      if (key == record.Key(etcd_->url(), "c")) return value;
    }
    return "";
  }
  [[nodiscard]] bool AwaitValue(const RegistryRecord& record, const std::string& value) const {
    for (const auto limit = std::chrono::steady_clock::now() + seconds(60); std::chrono::steady_clock::now() < limit;) {
      if (ValueOf(record) == value) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }

  std::optional<EtcdServer> etcd_;
};

TEST_F(RegistryPresenceTest, RanksAreToldOfRoutersThatComeAndGo) {
  Present rank(etcd_->url(), {Rank(7), Rank(8, "cache-of-x")});
  ASSERT_TRUE(rank.AwaitRouters({}));
  EXPECT_THAT(Keys(), ElementsAre("winnow/c/cache-ranks/cache-0", "winnow/c/cache-ranks/cache-of-x"));
  {
    Present router(etcd_->url(), {kRouter});
    ASSERT_TRUE(rank.AwaitRouters({kRouterAddress}));
    RegistryRecord second = kRouter;
    second.grpc_address = "127.0.0.1:9001";  // the same name: routers are known by their addresses
    Present other(etcd_->url(), {second});
    ASSERT_TRUE(rank.AwaitRouters({kRouterAddress, {"127.0.0.1", 9001}}));
    Present elsewhere({.endpoints = etcd_->url().endpoints, .prefix = "winnow/other"}, {second});
    ASSERT_TRUE(elsewhere.AwaitRouters({{"127.0.0.1", 9001}}));
  }
  EXPECT_TRUE(rank.AwaitRouters({})) << "both have taken themselves out";
  EXPECT_EQ(rank.state().lost_leases, 0u);
}

TEST_F(RegistryPresenceTest, ALaterStartTakesTheNameAndFencesTheEarlierOne) {
  Present earlier(etcd_->url(), {Rank(7)});
  ASSERT_TRUE(earlier.AwaitRouters({}));
  {
    Present later(etcd_->url(), {Rank(3)});  // incarnations have no order
    ASSERT_TRUE(later.AwaitRouters({}));
    ASSERT_TRUE(earlier.AwaitRefusal());
    EXPECT_EQ(earlier.refused().code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(earlier.refused().message()), testing::HasSubstr("cache-ranks/cache-0"));
    EXPECT_EQ(ValueOf(Rank(3)), Rank(3).Value());
    EXPECT_TRUE(later.refused().ok());
  }
  EXPECT_THAT(Keys(), IsEmpty());
}

TEST_F(RegistryPresenceTest, WhatIsTakenOutIsPublishedAgain) {
  Present rank(etcd_->url(), {Rank(7)}), router(etcd_->url(), {kRouter});
  ASSERT_TRUE(rank.AwaitRouters({kRouterAddress}));
  etcd_->Delete("winnow/");
  EXPECT_TRUE(AwaitValue(Rank(7), Rank(7).Value()));
  EXPECT_TRUE(AwaitValue(kRouter, kRouter.Value()));
  EXPECT_TRUE(rank.AwaitRouters({kRouterAddress}));
  etcd_->Put("winnow/c/routers/broken", "not JSON");
  etcd_->Put("winnow/c/routers/b", R"({"grpc":"b:2"})");
  EXPECT_TRUE(rank.AwaitRouters({kRouterAddress, {"b", 2}})) << "what cannot be read is left out";
}

TEST_F(RegistryPresenceTest, RoutersKnownLastStayWhileItIsAwayAndAllIsPublishedWhenItIsBackWithItsData) {
  Present rank(etcd_->url(), {Rank(7)}), router(etcd_->url(), {kRouter});
  ASSERT_TRUE(rank.AwaitRouters({kRouterAddress}));
  ASSERT_TRUE(router.AwaitConnected(true));
  etcd_->Kill();
  ASSERT_TRUE(rank.AwaitConnected(false));
  EXPECT_EQ(rank.state().routers, std::vector<HostPort>{kRouterAddress});
  EXPECT_GT(rank.state().away_seconds, 0);
  EXPECT_EQ(rank.routers(), std::vector<HostPort>{kRouterAddress});
  ASSERT_TRUE(rank.AwaitAway());
  EXPECT_TRUE(rank.holds()) << "nobody can say that a later start has come";
  etcd_->Start();
  ASSERT_TRUE(rank.AwaitConnected(true));
  ASSERT_TRUE(router.AwaitConnected(true));
  EXPECT_EQ(rank.state().away_seconds, 0);
  EXPECT_TRUE(rank.holds());
  EXPECT_EQ(etcd_->Values().size(), 2u);
  Present late(etcd_->url(), {Rank(1, "late")});
  EXPECT_TRUE(late.AwaitRouters({kRouterAddress}));
}

TEST_F(RegistryPresenceTest, AllIsPublishedWhenItIsBackWithoutItsData) {
  Present rank(etcd_->url(), {Rank(7)}), router(etcd_->url(), {kRouter});
  ASSERT_TRUE(rank.AwaitRouters({kRouterAddress}));
  etcd_->Kill();
  ASSERT_TRUE(rank.AwaitConnected(false));
  etcd_->LoseData();
  etcd_->Start();
  EXPECT_TRUE(AwaitValue(Rank(7), Rank(7).Value()));
  EXPECT_TRUE(AwaitValue(kRouter, kRouter.Value()));
  EXPECT_TRUE(rank.AwaitRouters({kRouterAddress}));
  EXPECT_TRUE(rank.refused().ok());
}

TEST_F(RegistryPresenceTest, AProcessMayComeBeforeTheRegistry) {
  etcd_->Kill();
  Present rank(etcd_->url(), {Rank(7)});
  EXPECT_FALSE(rank.state().connected);
  etcd_->Start();
  EXPECT_TRUE(rank.AwaitRouters({}));
}

TEST_F(RegistryPresenceTest, MembersThatDoNotAnswerArePassedOver) {
  RegistryUrl url = etcd_->url();
  url.endpoints.insert(url.endpoints.begin(), {{"127.0.0.1", 1}, {"no-such-host.invalid", 2379}});
  Present rank(url, {Rank(7)});
  EXPECT_TRUE(rank.AwaitRouters({}));
}

TEST_F(RegistryPresenceTest, OverTlsBothSidesShowCertificates) {
  const TempDir folder;
  const TestAuthority ours(folder.path() + "/ours"), others(folder.path() + "/others");
  EtcdServer encrypted(ours.Issue("etcd", "IP:127.0.0.1"));
  const TlsFiles files = ours.Issue("rank", "URI:spiffe://winnow/cache-rank");
  Present rank(encrypted.url(), {Rank(7)}, files);
  EXPECT_TRUE(rank.AwaitRouters({}));
  RegistryUrl by_name = encrypted.url();
  by_name.endpoints.front().host = "localhost";
  Present stranger(encrypted.url(), {Rank(8, "stranger")}, others.Issue("rank", "URI:spiffe://winnow/cache-rank"));
  Present in_clear({.endpoints = encrypted.url().endpoints}, {Rank(9, "in-clear")});
  Present misled(by_name, {Rank(10, "misled")}, files);
  std::this_thread::sleep_for(seconds(1));
  EXPECT_EQ(encrypted.Values().size(), 1u);
  EXPECT_FALSE(stranger.state().connected);
  EXPECT_FALSE(in_clear.state().connected);
  EXPECT_FALSE(misled.state().connected) << "the certificate is for another host";
}

class PublishedRecordTest : public RegistryPresenceTest {
 protected:
  EtcdClient client() const { return EtcdClient(etcd_->url().endpoints.front(), EtcdCredentials({})); }
  int64_t Lease() const {
    const auto granted = client().Grant(seconds(60));
    EXPECT_TRUE(granted.ok()) << granted.status();
    return granted.ok() ? granted->id : 0;
  }
};

TEST_F(PublishedRecordTest, ComesBackAfterItsLeaseUnlessALaterStartHasComeInBetween) {
  EtcdClient etcd = client();
  PublishedRecord record("winnow/k", "first");
  const int64_t lease = Lease();
  ASSERT_TRUE(record.Publish(etcd, lease).ok());
  ASSERT_TRUE(etcd.Revoke(lease).ok());
  EXPECT_EQ(*etcd.KeepAlive(lease), seconds(0));
  EXPECT_THAT(etcd_->Values(), IsEmpty());
  const int64_t next = Lease();
  ASSERT_TRUE(record.Publish(etcd, next).ok());
  EXPECT_GT(*etcd.KeepAlive(next), seconds(0));

  ASSERT_TRUE(etcd.Revoke(next).ok());
  PublishedRecord later("winnow/k", "second");
  ASSERT_TRUE(later.Publish(etcd, Lease()).ok());
  EXPECT_EQ(record.Publish(etcd, Lease()).code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(later.Publish(etcd, Lease()).ok()) << "under another lease";
  EXPECT_THAT(etcd_->Values(), ElementsAre(std::pair<std::string, std::string>("winnow/k", "second")));
}

TEST_F(PublishedRecordTest, OfTwoThatMeetAfterTheDataWereLostTheLaterOneStays) {
  EtcdClient etcd = client();
  PublishedRecord earlier("winnow/k", "first"), later("winnow/k", "second");
  ASSERT_TRUE(earlier.Publish(etcd, Lease()).ok());
  ASSERT_TRUE(later.Publish(etcd, Lease()).ok());
  etcd_->Delete("winnow/");
  ASSERT_TRUE(earlier.Publish(etcd, Lease()).ok()) << "nobody is there";
  ASSERT_TRUE(later.Publish(etcd, Lease()).ok());
  EXPECT_EQ(earlier.Publish(etcd, Lease()).code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace winnow
