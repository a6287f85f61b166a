#include "common/config/listen_address.h"

#include "common/config/parse_value.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

TEST(ReservedAddress, ChoosesAPortThatAServerCanStillListenOn) {
  const auto reserved = ReservedAddress::Reserve("localhost:0");
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  const auto parsed = ParseHostPort(reserved->address());
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->host, "localhost");
  EXPECT_NE(parsed->port, 0);
  EXPECT_TRUE(CheckListenAddress(reserved->address()).ok());
}

TEST(ReservedAddress, TwoReservationsNeverShareAPort) {
  const auto a = ReservedAddress::Reserve("127.0.0.1:0");
  const auto b = ReservedAddress::Reserve("127.0.0.1:0");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->address(), b->address());
}

TEST(CheckListenAddress, NamesAnAddressThatIsNotOurs) {
  EXPECT_EQ(CheckListenAddress("192.0.2.1:0").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckListenAddress("no port").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*CheckListenAddress("localhost:0"), "127.0.0.1:0");
}

}  // namespace
}  // namespace winnow
