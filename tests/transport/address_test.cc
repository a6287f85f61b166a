#include <gtest/gtest.h>

#include "transport/channel_address.h"

namespace winnow {
namespace {

using Kind = ChannelAddress::Kind;

TEST(ChannelAddressTest, DecodesWhatItEncodes) {
  const std::string endpoint("\0\xff some bytes", 13);
  const std::string bytes = ChannelAddress{Kind::kUcx, 7, 8, 9, endpoint}.Encode();
  const auto decoded = ChannelAddress::Decode(bytes, Kind::kUcx);
  ASSERT_EQ(decoded.status(), absl::OkStatus());
  EXPECT_EQ(decoded->channel, 7u);
  EXPECT_EQ(decoded->incarnation, 8u);
  EXPECT_EQ(decoded->host, 9u);
  EXPECT_EQ(decoded->endpoint, endpoint);
}

TEST(ChannelAddressTest, RefusesEverythingElse) {
  const std::string bytes = ChannelAddress{Kind::kUcx, 7, 8, 9, "endpoint"}.Encode();
  EXPECT_TRUE(absl::IsInvalidArgument(ChannelAddress::Decode(bytes, Kind::kInproc).status()));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(absl::IsInvalidArgument(ChannelAddress::Decode(bytes.substr(0, size), Kind::kUcx).status())) << size;
  }
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string bent = bytes;
    bent[bit / 8] = static_cast<char>(bent[bit / 8] ^ (1 << bit % 8));
    EXPECT_TRUE(absl::IsInvalidArgument(ChannelAddress::Decode(bent, Kind::kUcx).status())) << bit;
  }
}

}  // namespace
}  // namespace winnow
