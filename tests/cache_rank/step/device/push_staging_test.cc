#include "cache_rank/step/device/push_staging.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/host_gpu/host_device.h"
#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

constexpr KvLayout kLayout = {
    .num_layers = 1, .num_query_heads = 2, .num_kv_heads = 1, .head_dim = 64, .dtype = Dtype::kBf16};
constexpr size_t kBytes = 100;

class PushStagingTest : public testing::Test {
 protected:
  // As the peer does.
  void Write(uint64_t push, int byte) {
    std::memset(device::PushStagingPlace(kLayout, staging_->memory().data(), push), byte, kBytes);
  }
  const std::unique_ptr<device::Device> device_ = test::OpenHostDevice(0).value();
  const std::unique_ptr<PushStaging> staging_ = PushStaging::Create(device_.get(), kLayout).value();
};

TEST_F(PushStagingTest, HandsOverWhatWasPushedInOrder) {
  EXPECT_EQ(staging_->Oldest(false).value(), nullptr);
  for (uint64_t push = 1; push <= 3 * device::kPushStagingPlaces; ++push) {
    Write(push, static_cast<int>(push));
    ASSERT_THAT(staging_->Begin(push, kBytes, nullptr), IsOkStatus());
    if (push % 2 != 0) continue;
    for (uint64_t oldest = push - 1; oldest <= push; ++oldest) {
      const std::byte* rows = staging_->Oldest(true).value();
      ASSERT_NE(rows, nullptr);
      EXPECT_EQ(rows[0], static_cast<std::byte>(oldest));
      EXPECT_EQ(rows[kBytes - 1], static_cast<std::byte>(oldest));
      staging_->PopOldest();
    }
  }
  EXPECT_EQ(staging_->Oldest(true).value(), nullptr);
}

TEST_F(PushStagingTest, RefusesWhatNoPeerMayPush) {
  EXPECT_FALSE(staging_->Begin(2, kBytes, nullptr).ok()) << "the first is missing";
  EXPECT_FALSE(staging_->Begin(1, device::PushStagingPlaceBytes(kLayout) + 1, nullptr).ok());
  for (uint64_t push = 1; push <= device::kPushStagingPlaces; ++push) {
    ASSERT_THAT(staging_->Begin(push, kBytes, nullptr), IsOkStatus());
  }
  EXPECT_FALSE(staging_->Begin(device::kPushStagingPlaces + 1, kBytes, nullptr).ok()) << "no place is free";
  EXPECT_FALSE(staging_->Begin(device::kPushStagingPlaces, kBytes, nullptr).ok()) << "a second time";
  staging_->PopOldest();
  EXPECT_TRUE(staging_->Begin(device::kPushStagingPlaces + 1, kBytes, nullptr).ok());
}

}  // namespace
}  // namespace winnow
