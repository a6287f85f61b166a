#include "router/keys/key_ring.h"

#include <gtest/gtest.h>

#include <fstream>

namespace winnow {
namespace {

class KeyRingTest : public ::testing::Test {
 protected:
  // "Bearer KEY" of a new key of the file.
  std::string Add(const std::string& name, uint32_t requests_per_minute = 0) {
    ApiKey key;
    key.name = name;
    key.limits.requests_per_minute = requests_per_minute;
    const std::string text = IssueSecret(key);
    file_.keys.push_back(key);
    Write();
    return "Bearer " + text;
  }
  void Write() { ASSERT_TRUE(file_.Save(path_).ok()); }

  const std::string path_ = testing::TempDir() + "/key-ring.yaml";
  KeyFile file_;
};

TEST_F(KeyRingTest, TellsWhoseCredentialsTheyAre) {
  const std::string alice = Add("alice"), bob = Add("bob");
  file_.keys[1].tenant = "team";
  file_.keys[1].weight = 3;
  Write();
  const auto ring = KeyRing::Load(path_);
  ASSERT_TRUE(ring.ok()) << ring.status();
  const auto caller = (*ring)->Authenticate(alice);
  ASSERT_TRUE(caller.ok());
  EXPECT_EQ(caller->tenant, "alice");
  EXPECT_EQ(caller->weight, 1);
  EXPECT_EQ((*ring)->Authenticate(bob)->tenant, "team");
  EXPECT_EQ((*ring)->Authenticate(bob)->weight, 3);
  EXPECT_EQ((*ring)->Authenticate(alice)->account, caller->account) << "one account for all requests of a key";
  const std::string mixed = alice.substr(0, alice.rfind('-')) + bob.substr(bob.rfind('-'));
  for (const std::string& wrong : {std::string("Bearer sk-any"), mixed, std::string("Bearer wk-00-00")}) {
    const absl::Status status = (*ring)->Authenticate(wrong).status();
    EXPECT_TRUE(absl::IsUnauthenticated(status)) << wrong;
    EXPECT_EQ(status.message().find(wrong), absl::string_view::npos) << "credentials are not repeated";
  }
  EXPECT_TRUE(absl::IsUnauthenticated((*ring)->Authenticate("").status()));
  EXPECT_EQ((*ring)->counters().without_key, 1u);
  EXPECT_EQ((*ring)->counters().wrong_key, 3u);
}

TEST_F(KeyRingTest, ReadsTheFileWhenTold) {
  Add("alice");
  const auto ring = KeyRing::Load(path_);
  ASSERT_TRUE(ring.ok());
  Add("bob");
  EXPECT_EQ(*(*ring)->Reload(), 2u);
  EXPECT_FALSE(*(*ring)->ReloadIfChanged()) << "that has been read";
  EXPECT_EQ(*(*ring)->Reload(), 2u) << "also where nothing has changed";
  std::ofstream(path_, std::ios::app) << "  - nothing: 1\n";
  const absl::Status broken = (*ring)->Reload().status();
  EXPECT_NE(broken.message().find("line "), absl::string_view::npos) << broken;
  EXPECT_EQ((*ring)->accounts().size(), 2u) << "what was read before stays in force";
}

TEST_F(KeyRingTest, FollowsTheFile) {
  const std::string alice = Add("alice", 1), bob = Add("bob");
  const auto loaded = KeyRing::Load(path_);
  ASSERT_TRUE(loaded.ok());
  KeyRing& ring = **loaded;
  const auto admit = [](const Caller& caller) { return caller.account->Admit({}, KeyRing::Clock::now()).status(); };
  EXPECT_TRUE(admit(*ring.Authenticate(alice)).ok());
  EXPECT_FALSE(*ring.ReloadIfChanged());

  file_.keys.pop_back();
  const std::string carol = Add("carol");
  EXPECT_FALSE(ring.Authenticate(carol).ok());
  EXPECT_TRUE(*ring.ReloadIfChanged());
  EXPECT_TRUE(ring.Authenticate(carol).ok());
  EXPECT_FALSE(ring.Authenticate(bob).ok()) << "revoked";
  EXPECT_FALSE(admit(*ring.Authenticate(alice)).ok()) << "what was used of a rate stays used";

  std::ofstream(path_) << "keys: nonsense\n";
  EXPECT_FALSE(ring.ReloadIfChanged().ok());
  EXPECT_TRUE(ring.Authenticate(carol).ok()) << "an unreadable file changes nothing";
  EXPECT_FALSE(*ring.ReloadIfChanged()) << "and is said once";
  EXPECT_EQ(ring.counters().failed_reloads, 1u);
}

}  // namespace
}  // namespace winnow
