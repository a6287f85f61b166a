// Against a real etcd, which each test starts.
#include "common/discovery/shared_values.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <optional>

#include "tests/support/etcd_server.h"

namespace winnow {
namespace {

using Values = SharedValues::Values;

// A process that shares values, and what it has been told.
class Sharing {
 public:
  explicit Sharing(const RegistryUrl& url)
      : values_({.registry = url, .folder = "winnow/c/things/", .on_values = [this](const Values& values) {
                   const std::lock_guard lock(mutex_);
                   told_ = values;
                   changed_.notify_all();
                 }}) {}

  absl::Status Set(const std::string& name, const std::string& value) { return values_.Set({{name, value}}); }
  [[nodiscard]] bool Await(const Values& values) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return told_ == values; });
  }
  [[nodiscard]] bool AwaitSettled() {
    for (const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
         std::chrono::steady_clock::now() < limit;) {
      if (values_.IsSettled()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  Values told() {
    const std::lock_guard lock(mutex_);
    return told_.value_or(Values());
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Values> told_;
  SharedValues values_;
};

class SharedValuesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!EtcdServer::IsInstalled()) GTEST_SKIP() << "no etcd here (Debian's etcd-server)";
    etcd_.emplace();
  }
  std::optional<EtcdServer> etcd_;
};

TEST_F(SharedValuesTest, WhatOneSetsTheOthersAreToldAndThoseToCome) {
  Sharing one(etcd_->url()), other(etcd_->url());
  EXPECT_TRUE(one.AwaitSettled());
  EXPECT_TRUE(one.Set("a", "1").ok());
  EXPECT_EQ(one.told(), (Values{{"a", "1"}})) << "it holds when it has been set";
  EXPECT_TRUE(other.Await({{"a", "1"}}));
  EXPECT_TRUE(other.Set("a", "2").ok());
  EXPECT_TRUE(other.Set("b", "3").ok());
  EXPECT_TRUE(one.Await({{"a", "2"}, {"b", "3"}}));
  Sharing later(etcd_->url());
  EXPECT_TRUE(later.AwaitSettled());
  EXPECT_EQ(later.told(), (Values{{"a", "2"}, {"b", "3"}}));
}

TEST_F(SharedValuesTest, WhatIsSetWhileTheRegistryIsAwayHoldsAndIsPublishedLater) {
  Sharing one(etcd_->url()), other(etcd_->url());
  EXPECT_TRUE(one.Set("a", "1").ok());
  EXPECT_TRUE(other.Await({{"a", "1"}}));
  etcd_->Kill();
  EXPECT_TRUE(absl::IsUnavailable(one.Set("a", "2")));
  EXPECT_EQ(one.told(), (Values{{"a", "2"}}));
  EXPECT_EQ(other.told(), (Values{{"a", "1"}})) << "what was known last";
  etcd_->Start();
  EXPECT_TRUE(other.Await({{"a", "2"}}));
}

TEST_F(SharedValuesTest, WhatTheRegistryHasLostIsPublishedByThoseWhoKnowIt) {
  Sharing one(etcd_->url());
  EXPECT_TRUE(one.Set("a", "1").ok());
  etcd_->Kill();
  etcd_->LoseData();
  etcd_->Start();
  Sharing later(etcd_->url());
  EXPECT_TRUE(later.Await({{"a", "1"}}));
  etcd_->Delete("winnow/c/things/a");
  EXPECT_TRUE(later.Set("b", "1").ok());
  EXPECT_TRUE(one.Await({{"a", "1"}, {"b", "1"}}));
}

TEST_F(SharedValuesTest, AProcessThatStartsWithoutTheRegistryIsSettledAndWaitsForIt) {
  etcd_->Kill();
  Sharing one(etcd_->url());
  EXPECT_TRUE(one.AwaitSettled());
  EXPECT_TRUE(absl::IsUnavailable(one.Set("a", "1")));
  etcd_->Start();
  Sharing other(etcd_->url());
  EXPECT_TRUE(other.Await({{"a", "1"}}));
}

}  // namespace
}  // namespace winnow
