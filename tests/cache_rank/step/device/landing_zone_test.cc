#include "cache_rank/step/device/landing_zone.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/host_gpu/host_device.h"
#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

constexpr KvLayout kLayout = {
    .num_layers = 1, .num_query_heads = 2, .num_kv_heads = 1, .head_dim = 64, .dtype = Dtype::kBf16};
constexpr size_t kBytes = 100;

class LandingZoneTest : public testing::Test {
 protected:
  // As the peer does.
  void Write(uint64_t push, int byte) {
    std::memset(cuda::LandingPlace(kLayout, zone_->memory().data(), push), byte, kBytes);
  }
  const std::unique_ptr<cuda::Device> device_ = test::OpenHostDevice(0).value();
  const std::unique_ptr<LandingZone> zone_ = LandingZone::Create(device_.get(), kLayout).value();
};

TEST_F(LandingZoneTest, HandsOverWhatWasPushedInOrder) {
  EXPECT_EQ(zone_->Oldest(false).value(), nullptr);
  for (uint64_t push = 1; push <= 3 * cuda::kLandingPlaces; ++push) {
    Write(push, static_cast<int>(push));
    ASSERT_THAT(zone_->Begin(push, kBytes, nullptr), IsOkStatus());
    if (push % 2 != 0) continue;
    for (uint64_t oldest = push - 1; oldest <= push; ++oldest) {
      const std::byte* rows = zone_->Oldest(true).value();
      ASSERT_NE(rows, nullptr);
      EXPECT_EQ(rows[0], static_cast<std::byte>(oldest));
      EXPECT_EQ(rows[kBytes - 1], static_cast<std::byte>(oldest));
      zone_->PopOldest();
    }
  }
  EXPECT_EQ(zone_->Oldest(true).value(), nullptr);
}

TEST_F(LandingZoneTest, RefusesWhatNoPeerMayPush) {
  EXPECT_FALSE(zone_->Begin(2, kBytes, nullptr).ok()) << "the first is missing";
  EXPECT_FALSE(zone_->Begin(1, cuda::LandingPlaceBytes(kLayout) + 1, nullptr).ok());
  for (uint64_t push = 1; push <= cuda::kLandingPlaces; ++push) {
    ASSERT_THAT(zone_->Begin(push, kBytes, nullptr), IsOkStatus());
  }
  EXPECT_FALSE(zone_->Begin(cuda::kLandingPlaces + 1, kBytes, nullptr).ok()) << "no place is free";
  EXPECT_FALSE(zone_->Begin(cuda::kLandingPlaces, kBytes, nullptr).ok()) << "a second time";
  zone_->PopOldest();
  EXPECT_TRUE(zone_->Begin(cuda::kLandingPlaces + 1, kBytes, nullptr).ok());
}

}  // namespace
}  // namespace winnow
