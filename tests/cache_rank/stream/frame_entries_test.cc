#include "cache_rank/stream/frame_entries.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/cache_rank/store/stored_keys.h"
#include "transport/wire/crc32c.h"

namespace winnow::test {
namespace {

constexpr size_t kFrameBytes = 1000;

template <typename T>
T ReadAt(const std::vector<std::byte>& payload, size_t* offset) {
  *offset = wire::AlignUp(*offset, alignof(T));
  T value;
  std::memcpy(&value, payload.data() + *offset, sizeof value);
  *offset += sizeof value;
  return value;
}

class DeltaFrameTest : public testing::Test {
 protected:
  // A delta of `streamed` rows at every third position, and as many rows that are resident already.
  static HeadDelta DeltaOf(uint32_t streamed) {
    HeadDelta delta;
    delta.selected.resize(2 * streamed);
    std::iota(delta.selected.begin(), delta.selected.end(), 100);
    for (uint32_t i = 0; i < streamed; ++i) {
      delta.streamed.push_back(100 + 2 * i);
      delta.streamed_positions.push_back(3 * i);
    }
    delta.local = {{.pool_index = 7, .position = 150}};
    return delta;
  }
  // Its parts, frame by frame: each frame as long as it says, and with the rows of their positions.
  std::vector<wire::DeltaEntry> Cut(const HeadDelta& delta, bool tells_positions = false) {
    const size_t row_bytes = stored_.kv.layout().row_bytes();
    std::vector<wire::DeltaEntry> entries;
    for (uint32_t done = 0; entries.empty() || (entries.back().flags & wire::kDeltaLast) == 0;) {
      DeltaFrame frame(kFrameBytes);
      const bool begins = entries.empty();
      EXPECT_TRUE(frame.Add({.delta = &delta,
                             .kv = &stored_.kv,
                             .layer = 0,
                             .kv_head = 1,
                             .begins = begins,
                             .first = done,
                             .tells_positions = tells_positions}));
      std::vector<std::byte> payload(frame.bytes(), std::byte{0xa5});
      SequenceKv::GatherRows(frame.Write(payload.data()), nullptr);
      EXPECT_EQ(frame.Checksum(payload.data()), Crc32c(payload)) << "from the checksums of rows";
      largest_ = std::max(largest_, payload.size());
      size_t offset = 0;
      const auto& entry = entries.emplace_back(ReadAt<wire::DeltaEntry>(payload, &offset));
      for (uint32_t i = 0; i < entry.num_selected; ++i) {
        EXPECT_EQ(ReadAt<uint32_t>(payload, &offset), delta.selected[i]);
      }
      for (uint32_t i = 0; i < entry.num_streamed; ++i) {
        EXPECT_EQ(ReadAt<uint32_t>(payload, &offset), delta.streamed[done + i]);
      }
      EXPECT_EQ((entry.flags & wire::kDeltaPositions) != 0, tells_positions);
      for (uint32_t i = 0; tells_positions && i < entry.num_streamed; ++i) {
        EXPECT_EQ(ReadAt<uint32_t>(payload, &offset), delta.streamed_positions[done + i]);
      }
      offset += entry.num_local * sizeof(wire::LocalRow);
      if (entry.num_streamed > 0) offset = wire::AlignUp(offset, wire::kRowAlignment);
      for (uint32_t i = 0; i < entry.num_streamed; ++i, offset += row_bytes) {
        std::vector<std::byte> row(row_bytes);
        stored_.kv.CopyRows(0, 1, delta.streamed_positions[done + i], 1, row.data());
        EXPECT_EQ(std::memcmp(row.data(), payload.data() + offset, row_bytes), 0) << done + i;
      }
      EXPECT_EQ(offset, payload.size());
      done += entry.num_streamed;
    }
    return entries;
  }

  const StoredKeys stored_{SmallShape(1), /*seed=*/3, /*count=*/160};
  size_t largest_ = 0;
};

TEST_F(DeltaFrameTest, CutsADeltaIntoPartsThatHoldEachRowOnce) {
  const HeadDelta delta = DeltaOf(40);
  const std::vector<wire::DeltaEntry> entries = Cut(delta);
  ASSERT_GT(entries.size(), 2u) << "the case must need cutting";
  uint32_t rows = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ((entries[i].flags & wire::kDeltaFirst) != 0, i == 0);
    EXPECT_EQ((entries[i].flags & wire::kDeltaLast) != 0, i + 1 == entries.size());
    EXPECT_EQ(entries[i].num_selected, i == 0 ? 80u : 0u) << "the selection goes with the first part";
    EXPECT_EQ(entries[i].num_local, i == 0 ? 1u : 0u);
    rows += entries[i].num_streamed;
  }
  EXPECT_EQ(rows, 40u);
  EXPECT_LE(largest_, kFrameBytes);
}

TEST_F(DeltaFrameTest, TellsThePositionsOfTheRowsOfEachPart) {
  const HeadDelta delta = DeltaOf(40);
  const std::vector<wire::DeltaEntry> entries = Cut(delta, /*tells_positions=*/true);
  ASSERT_GT(entries.size(), 2u);
  uint32_t rows = 0;
  for (const wire::DeltaEntry& entry : entries) rows += entry.num_streamed;
  EXPECT_EQ(rows, 40u);
  EXPECT_LE(largest_, kFrameBytes);
}

TEST_F(DeltaFrameTest, ADeltaWhoseArraysFillAFrameTakesALargerOneWithOneRow) {
  HeadDelta delta = DeltaOf(5);
  delta.selected.assign(kFrameBytes / sizeof(uint32_t), 1);
  const std::vector<wire::DeltaEntry> entries = Cut(delta);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].num_streamed, 1u);
  EXPECT_EQ(entries[1].num_streamed, 4u);
  EXPECT_GT(largest_, kFrameBytes);
}

TEST_F(DeltaFrameTest, TakesDeltasUntilOneDoesNotFitAndNoneBehindACutOne) {
  const HeadDelta small = DeltaOf(1), large = DeltaOf(40);
  DeltaFrame frame(kFrameBytes);
  const auto add = [&](const HeadDelta& delta, uint32_t row) {
    return frame.Add({.delta = &delta, .kv = &stored_.kv, .plan_row = row, .begins = true});
  };
  uint32_t taken = 0;
  while (add(small, taken)) ++taken;
  EXPECT_GT(taken, 2u);
  EXPECT_LE(frame.bytes(), kFrameBytes);
  EXPECT_EQ(frame.parts().size(), taken);
  EXPECT_EQ(frame.rows(), taken);

  frame.Clear();
  EXPECT_TRUE(add(large, 0));
  EXPECT_FALSE(frame.parts()[0].ends);
  EXPECT_FALSE(add(small, 1));
}

TEST(FrameEntries, RefusesSelectionsWhoseEntriesNoFrameHolds) {
  const KvLayout layout = SmallShape(1).layout;
  SelectionSpec spec = SmallSpec(Predictor::kExact);
  EXPECT_TRUE(CheckEntriesFit(layout, spec, 1 << 20).ok());
  spec.budget_tokens = wire::kMaxPayloadBytes / sizeof(uint32_t);
  EXPECT_EQ(CheckEntriesFit(layout, spec, UINT32_MAX).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(CheckEntriesFit(layout, spec, 1000).ok()) << "no more rows are selected than there are";
}

}  // namespace
}  // namespace winnow::test
