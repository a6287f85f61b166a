#include "cache_rank/step/layer_sections.h"

#include <gtest/gtest.h>

#include <vector>

#include "transport/wire/wire.h"

namespace winnow {
namespace {

constexpr KvLayout kLayout{
    .num_layers = 3, .num_query_heads = 4, .num_kv_heads = 2, .head_dim = 8, .dtype = Dtype::kBf16};
constexpr int kHiddenSize = 5;
constexpr size_t kRowBytes = 2 * 8 * 2;    // K and V of one head
constexpr size_t kQueryBytes = 2 * 8 * 4;  // of the two query heads of one kv head

class LayerSectionsTest : public testing::Test {
 protected:
  LayerSectionsTest() {
    plan_.plan = 9;
    plan_.rows = {{.sequence_id = 1, .attach_epoch = 1, .position = 50, .shard = WholeModel(kLayout)},
                  {.sequence_id = 2, .attach_epoch = 1, .position = 70, .shard = {1, 1, 1, 2}}};
  }
  absl::Status Parse(int layer, uint32_t flags, size_t bytes, int prediction_layer = 0, uint32_t num_rows = 2) {
    payload_.assign(bytes, std::byte{0});
    wire::FrameHeader header{};
    header.type = wire::FrameType::kLayer;
    header.plan = 9;
    header.flags = flags;
    header.layer_first = static_cast<uint16_t>(layer);
    header.prediction_layer = static_cast<uint16_t>(prediction_layer);
    header.row_count = num_rows;
    return sections_.Parse(ReceivedFrame(header, payload_, nullptr, nullptr), plan_);
  }
  // Where a part begins in the payload.
  size_t OffsetOf(const void* part) const { return static_cast<const std::byte*>(part) - payload_.data(); }

  OpenPlan plan_;
  std::vector<std::byte> payload_;
  LayerSections sections_{kLayout, kHiddenSize};
};

TEST_F(LayerSectionsTest, FindsThePartOfEachRowWhoseShardHasTheLayer) {
  const size_t queries = wire::AlignUp(3 * kRowBytes, wire::kRowAlignment);  // behind the rows of three heads
  ASSERT_TRUE(Parse(1, wire::kSectionAppend | wire::kSectionQuery, queries + 3 * kQueryBytes).ok());
  EXPECT_EQ(OffsetOf(sections_.rows(0)), 0u);
  EXPECT_EQ(OffsetOf(sections_.rows(1)), 2 * kRowBytes);
  EXPECT_EQ(OffsetOf(sections_.query(0)), queries);
  EXPECT_EQ(OffsetOf(sections_.query(1)), queries + 2 * kQueryBytes);
  EXPECT_EQ(sections_.prediction(0), nullptr);
  EXPECT_EQ(sections_.hidden(1), nullptr);

  ASSERT_TRUE(Parse(0, wire::kSectionAppend, 2 * kRowBytes).ok());
  EXPECT_NE(sections_.rows(0), nullptr);
  EXPECT_EQ(sections_.rows(1), nullptr) << "its shard begins at layer 1";
  EXPECT_EQ(sections_.query(0), nullptr) << "of the frame before";
}

TEST_F(LayerSectionsTest, PredictionsAndResidualsGoByTheLayerThatTheyAreFor) {
  ASSERT_TRUE(Parse(0, wire::kSectionHidden, 2 * kHiddenSize * sizeof(float), /*prediction_layer=*/1).ok());
  EXPECT_EQ(OffsetOf(sections_.hidden(0)), 0u);
  EXPECT_EQ(OffsetOf(sections_.hidden(1)), kHiddenSize * sizeof(float)) << "layer 1 is of its shard, layer 0 is not";
  ASSERT_TRUE(Parse(0, wire::kSectionPrediction, 3 * kQueryBytes, /*prediction_layer=*/2).ok());
  EXPECT_EQ(OffsetOf(sections_.prediction(1)), 2 * kQueryBytes);
}

TEST_F(LayerSectionsTest, RefusesWhatIsNoLayerOfThePlan) {
  const size_t enough = 1024;
  EXPECT_TRUE(Parse(2, wire::kSectionAppend, enough).ok());
  EXPECT_FALSE(Parse(3, wire::kSectionAppend, enough).ok()) << "no such layer";
  EXPECT_FALSE(Parse(2, wire::kSectionAppend, enough, 0, /*num_rows=*/3).ok());
  EXPECT_FALSE(Parse(2, wire::kSectionAppend, 3 * kRowBytes - 1).ok()) << "cut off";
  EXPECT_FALSE(Parse(2, wire::kSectionPrediction, enough, /*prediction_layer=*/3).ok());
  LayerSections without_projection(kLayout, /*hidden_size=*/0);
  wire::FrameHeader header{};
  header.flags = wire::kSectionHidden;
  header.row_count = 2;
  EXPECT_FALSE(without_projection.Parse(ReceivedFrame(header, payload_, nullptr, nullptr), plan_).ok());
}

}  // namespace
}  // namespace winnow
