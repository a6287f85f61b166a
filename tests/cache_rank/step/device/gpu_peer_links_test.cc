#include "cache_rank/step/device/gpu_peer_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache_rank/step/device/gpu_peer_link.h"
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
constexpr int kBatchRows = 4;

PeerOffer OfferFor(const char* preset) {
  PeerOffer offer{.address = {},
                  .spec = FindPreset(preset).value(),
                  .max_rows = kBatchRows,
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

class GpuPeerLinksTest : public testing::TestWithParam<const char*> {
 protected:
  GpuPeerLinksTest() { offer_.address = peer_.address(); }
  std::unique_ptr<GpuPeerLinks> PeerLinksWith(size_t memory_bytes) {
    return GpuPeerLinks::Create(&test::HostGpuTable(), 0, {.model = {}, .memory_bytes = memory_bytes}).value();
  }

  PeerOffer offer_ = OfferFor(GetParam());
  const device::ExchangeShape exchange_ = GpuPeerLink::ExchangeOf(offer_, kLayout);
  const test::InferenceGpu peer_{exchange_};
};

// With past queries and without.
INSTANTIATE_TEST_SUITE_P(Selections, GpuPeerLinksTest, testing::Values("exact-token", "async-token"));

TEST_P(GpuPeerLinksTest, ALinkTakesTheMemoryThatIsPlannedForIt) {
  const auto device = test::OpenHostDevice(0).value();
  const DeviceKvShape shape = DeviceKvShapeFor(offer_.spec, kLayout, 2 * kBatchRows, kMaxPositions, 0);
  const DeviceKvBytes bytes = BytesOf(shape);
  const auto store = SequenceCopies::Create(&test::HostGpuTable(), device.get(), shape, offer_.spec,
                                            bytes.index() + (size_t{16} << 20))
                         .value();
  const DeviceSelection::Model model{.rope = Shape().model.rope, .attention_scale = 0.125f, .queries = nullptr};
  const size_t before = test::HostDeviceBytes();
  const auto peer_link = GpuPeerLink::Create(&test::HostGpuTable(), device.get(), store.get(), model, offer_);
  ASSERT_THAT(peer_link.status(), IsOkStatus());
  EXPECT_EQ(test::HostDeviceBytes() - before,
            GpuPeerLink::DeviceBytes(&test::HostGpuTable(), shape, offer_.spec, model, exchange_));
}

TEST_P(GpuPeerLinksTest, LinksAndCopiesStayWithinTheMemoryThatIsGiven) {
  constexpr size_t kMemory = size_t{256} << 20;
  const size_t before = test::HostDeviceBytes();
  const auto peer_links = PeerLinksWith(kMemory);
  std::vector<std::unique_ptr<DevicePeerLink>> open;
  for (size_t i = 0; i < GpuPeerLinks::kRoomForPeerLinks; ++i) {
    auto peer_link = peer_links->Open(offer_, Shape());
    ASSERT_THAT(peer_link.status(), IsOkStatus());
    open.push_back(*std::move(peer_link));
  }
  const size_t taken = test::HostDeviceBytes() - before;
  EXPECT_LE(taken, kMemory);
  EXPECT_GT(taken, kMemory / 100 * 99) << "copies have the rest";
}

TEST_P(GpuPeerLinksTest, TooLittleMemoryIsAddedUp) {
  const auto peer_links = PeerLinksWith(size_t{20} << 20);
  const absl::Status opened = peer_links->Open(offer_, Shape()).status();
  EXPECT_EQ(opened.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(opened.message(), HasSubstr("of 20.0 MiB of the cache rank's GPU (three quarters of --device-memory), 4 "
                                          "peer links of 4 batch rows take "));
  EXPECT_THAT(opened.message(), HasSubstr("nothing is left for sequences"));
}

TEST_P(GpuPeerLinksTest, RowsInHostMemoryNeedAKeyCopy) {
  const auto peer_links =
      GpuPeerLinks::Create(&test::HostGpuTable(), 0,
                           {.model = {}, .memory_bytes = size_t{256} << 20, .host_bytes = size_t{32} << 20})
          .value();
  PeerOffer offer = offer_;
  offer.spec.key_copy = KeyCopy::kNone;
  EXPECT_THAT(peer_links->Open(offer, Shape()).status(),
              FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr("--device-host-memory")));
  EXPECT_EQ(peer_links->copy_bytes().host, 0u);
  offer.spec.key_copy = KeyCopy::kInt8;
  ASSERT_THAT(peer_links->Open(offer, Shape()).status(), IsOkStatus());
  EXPECT_EQ(peer_links->copy_bytes().host, size_t{32} << 20);
  EXPECT_EQ(peer_links->copy_bytes().host_used, 0u);
  EXPECT_GT(peer_links->copy_bytes().device, size_t{64} << 20);
}

}  // namespace
}  // namespace winnow
