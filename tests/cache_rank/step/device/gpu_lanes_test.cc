#include "cache_rank/step/device/gpu_lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache_rank/step/device/gpu_lane.h"
#include "common/selection/attended_set.h"
#include "common/selection/presets.h"
#include "tests/cache_rank/step/device/inference_gpu.h"
#include "tests/support/host_gpu/host_device.h"
#include "tests/support/host_gpu/host_table.h"
#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

using testing::HasSubstr;

constexpr KvLayout kLayout = {
    .num_layers = 2, .num_query_heads = 4, .num_kv_heads = 2, .head_dim = 64, .dtype = Dtype::kBf16};
constexpr uint32_t kMaxPositions = 5000;
constexpr int kSeats = 4;

LaneOffer OfferFor(const char* preset) {
  LaneOffer offer{.address = {},
                  .spec = FindPreset(preset).value(),
                  .max_rows = kSeats,
                  .hidden_size = 256,
                  .max_positions = kMaxPositions,
                  .synthetic_model = {},
                  .shard = {}};
  offer.spec.budget_tokens = 64;
  return offer;
}
ServedShape Shape() {
  ServedShape shape;
  shape.layout = kLayout;
  shape.model.rope.inv_freq.assign(kLayout.head_dim / 2, 0.5f);
  shape.model.attention_scale = 0.125f;
  return shape;
}

class GpuLanesTest : public testing::TestWithParam<const char*> {
 protected:
  GpuLanesTest() { offer_.address = peer_.address(); }
  std::unique_ptr<GpuLanes> LanesWith(size_t memory_bytes) {
    return GpuLanes::Create(&test::HostGpuTable(), 0, {.model = {}, .memory_bytes = memory_bytes}).value();
  }

  LaneOffer offer_ = OfferFor(GetParam());
  const cuda::ExchangeShape exchange_ = GpuLane::ExchangeOf(offer_, kLayout);
  const test::InferenceGpu peer_{exchange_};
};

// With past queries and without.
INSTANTIATE_TEST_SUITE_P(Selections, GpuLanesTest, testing::Values("exact-token", "async-token"));

TEST_P(GpuLanesTest, ALaneTakesTheMemoryThatIsPlannedForIt) {
  const auto device = test::OpenHostDevice(0).value();
  const DeviceKvShape shape = DeviceKvShapeFor(offer_.spec, kLayout, 2 * kSeats, kMaxPositions, 0);
  const DeviceKvBytes bytes = BytesOf(shape);
  const auto store =
      LaneStore::Create(&test::HostGpuTable(), device.get(), shape, offer_.spec, bytes.index() + (size_t{16} << 20))
          .value();
  const DeviceSelection::Model model{.rope = Shape().model.rope, .attention_scale = 0.125f, .queries = nullptr};
  const size_t before = test::HostDeviceBytes();
  const auto lane = GpuLane::Create(&test::HostGpuTable(), device.get(), store.get(), model, offer_);
  ASSERT_THAT(lane.status(), IsOkStatus());
  EXPECT_EQ(test::HostDeviceBytes() - before,
            GpuLane::DeviceBytes(&test::HostGpuTable(), shape, offer_.spec, model, exchange_));
}

TEST_P(GpuLanesTest, LanesAndMirrorsStayWithinTheMemoryThatIsGiven) {
  constexpr size_t kMemory = size_t{256} << 20;
  const size_t before = test::HostDeviceBytes();
  const auto lanes = LanesWith(kMemory);
  std::vector<std::unique_ptr<DeviceLane>> open;
  for (size_t i = 0; i < GpuLanes::kRoomForLanes; ++i) {
    auto lane = lanes->Open(offer_, Shape());
    ASSERT_THAT(lane.status(), IsOkStatus());
    open.push_back(*std::move(lane));
  }
  const size_t taken = test::HostDeviceBytes() - before;
  EXPECT_LE(taken, kMemory);
  EXPECT_GT(taken, kMemory / 100 * 99) << "mirrors have the rest";
}

TEST_P(GpuLanesTest, TooLittleMemoryIsAddedUp) {
  const auto lanes = LanesWith(size_t{20} << 20);
  const absl::Status opened = lanes->Open(offer_, Shape()).status();
  EXPECT_EQ(opened.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(opened.message(), HasSubstr("of 20.0 MiB of the cache rank's GPU (three quarters of --device-memory), 4 "
                                          "lanes of 4 seats take "));
  EXPECT_THAT(opened.message(), HasSubstr("nothing is left for sequences"));
}

TEST_P(GpuLanesTest, RowsInHostMemoryNeedAKeyCopy) {
  const auto lanes = GpuLanes::Create(&test::HostGpuTable(), 0,
                                      {.model = {}, .memory_bytes = size_t{256} << 20, .host_bytes = size_t{32} << 20})
                         .value();
  LaneOffer offer = offer_;
  offer.spec.key_copy = KeyCopy::kNone;
  EXPECT_THAT(lanes->Open(offer, Shape()).status(),
              FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr("--device-host-memory")));
  EXPECT_EQ(lanes->mirror_bytes().host, 0u);
  offer.spec.key_copy = KeyCopy::kInt8;
  ASSERT_THAT(lanes->Open(offer, Shape()).status(), IsOkStatus());
  EXPECT_EQ(lanes->mirror_bytes().host, size_t{32} << 20);
  EXPECT_EQ(lanes->mirror_bytes().host_used, 0u);
  EXPECT_GT(lanes->mirror_bytes().device, size_t{64} << 20);
}

}  // namespace
}  // namespace winnow
