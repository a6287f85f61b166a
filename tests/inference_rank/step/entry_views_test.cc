#include "inference_rank/step/entry_views.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace winnow {
namespace {

constexpr size_t kRowBytes = 20;
constexpr size_t kBegin = 6;  // of the entry: what precedes it ends at an odd place

wire::DeltaEntry Entry(uint16_t flags, uint32_t num_selected = 0, uint32_t num_streamed = 0, uint32_t num_local = 0) {
  return {.plan_row = 4,
          .kv_head = 2,
          .flags = flags,
          .num_selected = num_selected,
          .num_streamed = num_streamed,
          .num_local = num_local,
          .captured_mass = 0};
}

// A Delta entry and its arrays as wire.h lays them out behind `kBegin` bytes; the arrays hold 1, 2, 3 ...
std::vector<std::byte> Payload(const wire::DeltaEntry& entry) {
  std::vector<std::byte> payload(wire::AlignUp(kBegin, alignof(wire::DeltaEntry)));
  const auto append = [&](const void* bytes, size_t count) {
    const auto* from = static_cast<const std::byte*>(bytes);
    payload.insert(payload.end(), from, from + count);
  };
  const auto align = [&](size_t alignment) { payload.resize(wire::AlignUp(payload.size(), alignment)); };
  uint32_t next = 0;
  const auto numbers = [&](uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) append(&++next, sizeof next);
  };
  append(&entry, sizeof entry);
  numbers(entry.num_selected);
  const QueryHeadMask mask = 1;
  for (uint32_t i = 0; (entry.flags & wire::kDeltaMembers) != 0 && i < entry.num_selected; ++i) {
    append(&mask, sizeof mask);
  }
  align(alignof(uint32_t));
  numbers(entry.num_streamed);
  if ((entry.flags & wire::kDeltaPositions) != 0) numbers(entry.num_streamed);
  numbers(2 * entry.num_local);
  if (entry.num_streamed == 0) return payload;
  align(wire::kRowAlignment);
  payload.resize(payload.size() + entry.num_streamed * kRowBytes, std::byte{0x5a});
  return payload;
}

TEST(DeltaEntry, IsReadArrayByArray) {
  const std::vector<std::byte> payload =
      Payload(Entry(wire::kDeltaFirst | wire::kDeltaLast | wire::kDeltaMembers, 3, 2, 1));
  size_t offset = kBegin;
  const absl::StatusOr<DeltaEntryView> view = ReadDeltaEntry(payload, kRowBytes, &offset);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(offset, wire::AlignUp(payload.size(), alignof(uint32_t)));
  EXPECT_EQ(view->entry.plan_row, 4u);
  EXPECT_EQ(view->entry.kv_head, 2u);
  EXPECT_TRUE(view->begins() && view->ends());
  EXPECT_EQ(std::vector(view->selected.begin(), view->selected.end()), (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_EQ(view->members.size(), 3u);
  EXPECT_EQ(std::vector(view->streamed.begin(), view->streamed.end()), (std::vector<uint32_t>{4, 5}));
  ASSERT_EQ(view->local.size(), 1u);
  EXPECT_EQ(view->local[0].pool_index, 6u);
  EXPECT_EQ(view->local[0].position, 7u);
  ASSERT_EQ(view->rows.size(), 2 * kRowBytes);
  EXPECT_EQ(view->rows.front(), std::byte{0x5a});
}

TEST(DeltaEntry, NamesThePositionsOfItsRowsWhereItSaysSo) {
  const std::vector<std::byte> payload = Payload(Entry(wire::kDeltaFirst | wire::kDeltaPositions, 1, 2, 1));
  size_t offset = kBegin;
  const absl::StatusOr<DeltaEntryView> view = ReadDeltaEntry(payload, kRowBytes, &offset);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(std::vector(view->streamed.begin(), view->streamed.end()), (std::vector<uint32_t>{2, 3}));
  EXPECT_EQ(std::vector(view->positions.begin(), view->positions.end()), (std::vector<uint32_t>{4, 5}));
  EXPECT_EQ(view->local[0].pool_index, 6u);
}

TEST(DeltaEntry, IsRefusedWhereverThePayloadEndsEarly) {
  const std::vector<std::byte> payload = Payload(Entry(wire::kDeltaFirst | wire::kDeltaPositions, 3, 2, 1));
  for (size_t length = kBegin; length < payload.size(); ++length) {
    size_t offset = kBegin;
    EXPECT_FALSE(ReadDeltaEntry(std::span(payload).first(length), kRowBytes, &offset).ok()) << length;
  }
}

TEST(DeltaEntry, IsRefusedWhereItsPartsContradictEachOther) {
  for (const wire::DeltaEntry& entry :
       {Entry(64), Entry(wire::kDeltaLast, 1), Entry(wire::kDeltaFirst, 0, UINT32_MAX)}) {
    std::vector<std::byte> payload = Payload(Entry(wire::kDeltaFirst, 8));
    std::memcpy(payload.data() + wire::AlignUp(kBegin, alignof(wire::DeltaEntry)), &entry, sizeof entry);
    size_t offset = kBegin;
    EXPECT_FALSE(ReadDeltaEntry(payload, kRowBytes, &offset).ok()) << entry.flags;
  }
}

}  // namespace
}  // namespace winnow
