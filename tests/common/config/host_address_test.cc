#include "common/config/host_address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

TEST(HostAddress, KnowsWhatOnlyThisMachineReaches) {
  for (const char* host : {"127.0.0.1", "127.8.9.10", "::1", "localhost"}) EXPECT_TRUE(IsLoopbackHost(host)) << host;
  for (const char* host : {"10.0.0.1", "0.0.0.0", "fe80::1", "example.org", "128.0.0.1", ""}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "::"}) EXPECT_TRUE(IsWildcardHost(host)) << host;
  for (const char* host : {"127.0.0.1", "::1", "10.0.0.0", "example.org"}) EXPECT_FALSE(IsWildcardHost(host)) << host;
}

TEST(HostAddress, ReadsListsOfAddresses) {
  const auto addresses = ParseHostPorts("a:1,[::1]:2, b:3");
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  EXPECT_THAT(*addresses, testing::ElementsAre(HostPort{"a", 1}, HostPort{"::1", 2}, HostPort{"b", 3}));
  EXPECT_EQ(ToString(*addresses), "a:1,[::1]:2,b:3");
  EXPECT_FALSE(ParseHostPorts("a:1,").ok());
  EXPECT_FALSE(ParseHostPorts("").ok());
}

TEST(HostAddress, ResolvesNamesInAnOrderThatIsEverybodys) {
  EXPECT_THAT(*ResolveHost({"10.1.2.3", 7}), testing::ElementsAre(HostPort{"10.1.2.3", 7}));
  const auto local = ResolveHost({"localhost", 7});
  ASSERT_TRUE(local.ok()) << local.status();
  for (const HostPort& address : *local) EXPECT_TRUE(IsLoopbackHost(address.host)) << address.host;
  EXPECT_EQ(ResolveHost({"no-such-host.invalid", 7}).status().code(), absl::StatusCode::kUnavailable);
}

TEST(HostAddress, FindsTheAddressTowardsAnother) {
  EXPECT_EQ(*LocalHostTowards({"127.0.0.1", 7}), "127.0.0.1");
  EXPECT_EQ(LocalHostTowards({"no-number", 7}).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace winnow
