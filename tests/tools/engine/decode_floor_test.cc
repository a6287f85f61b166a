#include "tools/engine/decode_floor.h"

#include <gtest/gtest.h>

#include "common/model/synthetic_models.h"

namespace winnow {
namespace {

class DecodeFloorTest : public testing::Test {
 protected:
  DecodeFloorTest() {
    setting_.config = *SyntheticModelConfig("synthetic:qwen3-14b");
    setting_.context_tokens = 32768;
  }
  DecodeCase Made(const std::string& selection, KvPlacement placement) {
    DecodeCase made = CaseOf(selection, placement, 2048, setting_.shard()).value();
    made.batch = 2;
    return made;
  }
  EngineSetting setting_;
};

TEST_F(DecodeFloorTest, DenseAttendsToEverything) {
  EXPECT_EQ(AttendedBytes(setting_, Made("dense", KvPlacement::kDense), nullptr), size_t{2} * 320 * 32768 * 512);
}

TEST_F(DecodeFloorTest, LayersWithASlidingWindowAttendToThat) {
  setting_.config = *SyntheticModelConfig("synthetic:gpt-oss-20b");
  EXPECT_EQ(AttendedBytes(setting_, Made("dense", KvPlacement::kDense), nullptr),
            size_t{2} * 8 * 12 * (32768 + 128) * 256);
}

TEST_F(DecodeFloorTest, RowsThatSeveralQueryHeadsSelectCountOnce) {
  const DecodeCase lserve = Made("lserve", KvPlacement::kColocated);
  const size_t selections = size_t{2} * 320 * 5;
  SelectedLists selected{.stride = 2, .entries = {}, .counts = std::vector<uint32_t>(selections, 2)};
  // Query heads i of a kv head select rows 0 and i: five different ones.
  for (size_t s = 0; s < selections; ++s) {
    selected.entries.push_back(0);
    selected.entries.push_back(1 + static_cast<uint32_t>(s % 5));
  }
  EXPECT_EQ(AttendedBytes(setting_, lserve, &selected), size_t{2} * 320 * (128 + 256 + 6) * 512);
}

TEST_F(DecodeFloorTest, ScoresAreReadOncePerSelectionAndNotOfStreamingHeads) {
  const SelectedLists none;
  EXPECT_EQ(ScoredBytes(setting_, Made("hisparse", KvPlacement::kColocated), none), size_t{2} * 320 * 32768 * 256);
  EXPECT_EQ(ScoredBytes(setting_, Made("quest", KvPlacement::kColocated), none), size_t{2} * 320 * 2048 * 512);
  EXPECT_EQ(ScoredBytes(setting_, Made("lserve", KvPlacement::kColocated), none), size_t{2} * 160 * 2048 * 512 / 4);
}

TEST_F(DecodeFloorTest, LongContextsReadBoundsOfGroupsAndOfThePagesOfThoseThatStay) {
  const DecodeCase winnow = Made("winnow,group_candidate_tokens=65536", KvPlacement::kColocated);
  const auto of_list = [&](uint32_t context) {
    setting_.context_tokens = context;
    return ScoredBytes(setting_, winnow, {}) / (size_t{2} * 320);
  };
  const size_t keys = 8192 * 132;
  EXPECT_EQ(of_list(65536), 4096 * 512 + keys);
  // Of 4,095 complete groups the first has the sinks and 256 stay; the last pages are in none.
  EXPECT_EQ(of_list(1 << 20), 4095 * 512 + (256 + 2) * 16 * 512 + keys);
}

TEST_F(DecodeFloorTest, PagesReadByMassAreReadTwice) {
  const DecodeCase psa = Made("psa", KvPlacement::kColocated);
  const SelectedLists selected{.stride = 4, .entries = std::vector<uint32_t>(2560), .counts = {3, 4}};
  EXPECT_EQ(ScoredBytes(setting_, psa, selected), size_t{2} * 320 * 1024 * 512 + 7 * 256);
}

TEST_F(DecodeFloorTest, TheSlowestOfMemoryLinkAndPeerIsTheFloor) {
  const StepBytes bytes{.weights = 100, .attended = 50, .scored = 600, .pushed = 40};
  const EngineRates rates{.read = 10, .nvlink = 1, .pcie = 0.5};
  std::string of;
  EXPECT_DOUBLE_EQ(bytes.FloorUs(KvPlacement::kColocated, rates, &of), 75);
  EXPECT_EQ(of, "HBM");
  EXPECT_DOUBLE_EQ(bytes.FloorUs(KvPlacement::kColocatedDram, rates, &of), 80);
  EXPECT_EQ(of, "PCIe");
  EXPECT_DOUBLE_EQ(bytes.FloorUs(KvPlacement::kDisaggregated, rates, &of), 64);
  EXPECT_EQ(of, "the cache rank's HBM");
}

}  // namespace
}  // namespace winnow
