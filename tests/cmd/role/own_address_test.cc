#include "cmd/role/own_address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using testing::HasSubstr;

const HostPort kLocalRouter{"127.0.0.1", 8001};
const HostPort kRemoteRouter{"192.0.2.1", 8001};  // reserved for documentation: nobody's

TEST(OwnAddress, AutoListensOnLoopbackForRoutersOfThisMachine) {
  EXPECT_EQ(ListenAddress({kAutoHost, 4000}, {kLocalRouter, {"localhost", 8001}})->ToString(), "127.0.0.1:4000");
  EXPECT_EQ(ListenAddress({"10.0.0.9", 4000}, {kLocalRouter})->ToString(), "10.0.0.9:4000");
  EXPECT_EQ(ListenAddress({kAutoHost, 0}, {{"no-such-host.invalid", 1}}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(OwnAddress, AdvertisesWhereItListens) {
  EXPECT_EQ(*AdvertisedAddress("", {"127.0.0.1", 4000}, kLocalRouter), "127.0.0.1:4000");
  EXPECT_EQ(*AdvertisedAddress("", {"10.0.0.9", 4000}, kRemoteRouter), "10.0.0.9:4000");
}

TEST(OwnAddress, AdvertisesTheWayToTheRouterWhereItListensOnAll) {
  EXPECT_EQ(*AdvertisedAddress("", {"0.0.0.0", 4000}, kLocalRouter), "127.0.0.1:4000");
}

TEST(OwnAddress, AdvertisesWhatItIsToldTo) {
  EXPECT_EQ(*AdvertisedAddress("rank-0.ranks", {"0.0.0.0", 4000}, kRemoteRouter), "rank-0.ranks:4000");
  EXPECT_EQ(*AdvertisedAddress("198.51.100.7:31000", {"0.0.0.0", 4000}, kRemoteRouter), "198.51.100.7:31000");
  EXPECT_EQ(*AdvertisedAddress("[2001:db8::7]", {"0.0.0.0", 4000}, kRemoteRouter), "[2001:db8::7]:4000");
}

// Where there is no route at all, that is what it says instead.
TEST(OwnAddress, RefusesLoopbackForARouterElsewhere) {
  const absl::Status status = AdvertisedAddress("", {"127.0.0.1", 4000}, kRemoteRouter).status();
  if (status.code() == absl::StatusCode::kUnavailable) GTEST_SKIP() << "this machine has no network";
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("192.0.2.1:8001 cannot reach"));
}

TEST(OwnAddress, RefusesToPublishLoopbackInARegistryElsewhere) {
  EXPECT_EQ(*PublishedAddress("", {"127.0.0.1", 8001}, {"127.0.0.1", 2379}), "127.0.0.1:8001");
  EXPECT_EQ(*PublishedAddress("router.example", {"127.0.0.1", 8001}, {"192.0.2.5", 2379}), "router.example:8001");
  const absl::Status status = PublishedAddress("", {"127.0.0.1", 8001}, {"192.0.2.5", 2379}).status();
  if (status.code() == absl::StatusCode::kUnavailable) GTEST_SKIP() << "this machine has no network";
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("this router listens on 127.0.0.1:8001"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--advertise"));
}

TEST(OwnAddress, ChecksWhatIsToBeAdvertised) {
  EXPECT_TRUE(CheckAdvertise("").ok());
  EXPECT_TRUE(CheckAdvertise("host").ok());
  EXPECT_TRUE(CheckAdvertise("10.0.0.1:4000").ok());
  EXPECT_THAT(std::string(CheckAdvertise("0.0.0.0").message()), HasSubstr("wildcard"));
  EXPECT_THAT(std::string(CheckAdvertise("a:b:c").message()), HasSubstr("HOST:PORT"));
}

}  // namespace
}  // namespace winnow
