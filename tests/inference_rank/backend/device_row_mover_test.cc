#include "inference_rank/backend/device_row_mover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cpu/thread_team.h"
#include "tests/kernels/device/fake_device.h"
#include "tests/support/host_gpu/host_table.h"

namespace winnow {
namespace {

constexpr size_t kRowBytes = 64;
constexpr size_t kSlots = 40;

// Moves of one launch of the host's table run last to first: an order that a mover counts on within one shows.
class DeviceRowMoverTest : public testing::Test {
 protected:
  DeviceRowMoverTest()
      : device_(test::HostGpuTable().open_device(0).value()), slots_(device_->Allocate(kSlots * kRowBytes).value()) {
    std::memset(slots_->data(), 0, slots_->bytes());
  }
  std::unique_ptr<DeviceRowMover> Mover(size_t staging_bytes) {
    return DeviceRowMover::Create(test::HostGpuTable(), *device_, nullptr, slots_->data(), kSlots,
                                  {.row_bytes = kRowBytes, .staging_bytes = staging_bytes})
        .value();
  }
  std::byte* slot(size_t i) { return static_cast<std::byte*>(slots_->data()) + i * kRowBytes; }
  static std::vector<std::byte> Row(int value) { return std::vector<std::byte>(kRowBytes, std::byte(value)); }
  int value(size_t i) { return static_cast<int>(*slot(i)); }

  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::DeviceMemory> slots_;
};

TEST_F(DeviceRowMoverTest, NothingMovesBeforeItIsFlushed) {
  const auto mover = Mover(1 << 20);
  mover->Write(slot(3), Row(7).data());
  EXPECT_EQ(value(3), 0);
  mover->Flush();
  EXPECT_EQ(value(3), 7);
}

TEST_F(DeviceRowMoverTest, WhatLaunchesAreToWaitForIsAskedBeforeEachOfThem) {
  const auto mover = Mover(1 << 20);
  int asked = 0;
  mover->BeforeLaunches([&] {
    ++asked;
    EXPECT_EQ(value(3), asked == 1 ? 0 : 7);
  });
  mover->Write(slot(3), Row(7).data());
  EXPECT_EQ(asked, 0) << "noted alone";
  mover->Flush();
  EXPECT_EQ(asked, 1);
  mover->Flush();
  EXPECT_EQ(asked, 1) << "there was nothing to launch";
  const std::vector<std::byte> row = Row(9);
  std::vector<std::byte> elsewhere(kRowBytes);
  mover->CopyBeside(std::vector<BlockCopy>{{.to = elsewhere.data(), .from = slot(3)}}, kRowBytes);
  EXPECT_EQ(asked, 2);
  mover->WriteBeside({.to = elsewhere.data(), .from = row.data(), .piece_bytes = kRowBytes, .num_pieces = 1}, nullptr);
  EXPECT_EQ(asked, 3);
}

TEST_F(DeviceRowMoverTest, ALaterMoveSeesWhatAnEarlierOneWrote) {
  const auto mover = Mover(1 << 20);
  mover->Write(slot(0), Row(1).data());
  mover->Copy(slot(1), slot(0));         // reads what was written
  mover->Write(slot(0), Row(2).data());  // writes what was read
  mover->Write(slot(0), Row(3).data());  // and again
  mover->Copy(slot(2), slot(1));
  mover->Flush();
  EXPECT_EQ(value(0), 3);
  EXPECT_EQ(value(1), 1);
  EXPECT_EQ(value(2), 1);
}

TEST_F(DeviceRowMoverTest, AnyMovesEndLikeMovesOneByOne) {
  std::mt19937 random(17);
  ThreadTeam team(3);
  const ParallelFor threads = [&team](size_t count, absl::FunctionRef<void(size_t)> body) {
    team.ParallelFor(static_cast<int>(count), [&body](int index, int) { body(index); });
  };
  // 64 rows of staging: it runs full many times.
  const auto mover = Mover(1);
  std::vector<std::byte> expected(kSlots * kRowBytes);
  for (int move = 0; move < 5000; ++move) {
    const size_t to = random() % kSlots, from = random() % kSlots;
    if (random() % 10 == 0) {
      // More than the staging holds, to any slots, some of them twice.
      std::vector<std::byte> rows;
      std::vector<uint32_t> places;
      constexpr uint32_t kFirst = 1000;
      for (size_t i = random() % 100; i > 0; --i) {
        const std::vector<std::byte> row = Row(static_cast<int>(random() % 256));
        const size_t place = random() % kSlots;
        places.push_back(kFirst + static_cast<uint32_t>(place));
        rows.insert(rows.end(), row.begin(), row.end());
        std::memcpy(expected.data() + place * kRowBytes, row.data(), kRowBytes);
      }
      if (random() % 3 == 0) {  // fetched from where they lie, later
        const auto kept = std::make_shared<std::vector<std::byte>>(rows);
        mover->WriteRows(places, kFirst, kept->data(), threads, kept);
      } else {
        mover->WriteRows(places, kFirst, rows.data(), random() % 2 == 0 ? threads : ParallelFor(), nullptr);
      }
      std::fill(rows.begin(), rows.end(), std::byte{0xee});  // the caller's again
    } else if (random() % 2 == 0) {
      const std::vector<std::byte> row = Row(static_cast<int>(random() % 256));
      mover->Write(slot(to), row.data());
      std::memcpy(expected.data() + to * kRowBytes, row.data(), kRowBytes);
    } else if (to != from) {
      mover->Copy(slot(to), slot(from));
      std::memcpy(expected.data() + to * kRowBytes, expected.data() + from * kRowBytes, kRowBytes);
    }
    if (random() % 50 == 0) {
      mover->Flush();
      if (random() % 2 == 0) mover->Recycle(mover->num_launched());
      ASSERT_EQ(std::memcmp(slots_->data(), expected.data(), expected.size()), 0) << "move " << move;
    }
  }
}

TEST_F(DeviceRowMoverTest, RowsComeFromOtherMemoryOfTheDeviceToo) {
  const auto mover = Mover(1 << 20);
  const auto arena = device_->Allocate(kRowBytes).value();
  std::memset(arena->data(), 9, kRowBytes);
  mover->Copy(slot(39), arena->data());
  mover->Flush();
  EXPECT_EQ(value(39), 9);
}

TEST_F(DeviceRowMoverTest, PiecesGoToOtherMemoryOfTheDeviceInOrder) {
  std::mt19937 random(5);
  constexpr size_t kRows = 24;
  const auto mover = Mover(1 << 20);
  const auto arena = device_->Allocate(kRows * kRowBytes).value();
  std::memset(arena->data(), 0, arena->bytes());
  const auto row = [&](size_t i) { return static_cast<std::byte*>(arena->data()) + i * kRowBytes; };
  std::vector<int> expected(kRows, 0);
  for (int move = 0; move < 500; ++move) {
    // Two pieces of two rows, five rows apart on one side and three on the other.
    const size_t to = random() % (kRows - 6), read = random() % kRows;
    mover->Copy(slot(0), row(read));  // before the pieces
    const int before = expected[read];
    auto rows = std::make_shared<std::vector<std::byte>>(5 * kRowBytes);
    for (const size_t i : {0, 1, 3, 4}) {
      const int written = static_cast<int>(random() % 256);
      std::fill_n(rows->begin() + static_cast<std::ptrdiff_t>(i * kRowBytes), kRowBytes, std::byte(written));
      expected[to + (i < 3 ? i : i + 2)] = written;
    }
    mover->WriteBeside({.to = row(to),
                        .to_stride = 5 * kRowBytes,
                        .from = rows->data(),
                        .from_stride = 3 * kRowBytes,
                        .piece_bytes = 2 * kRowBytes,
                        .num_pieces = 2},
                       rows);
    mover->Copy(slot(1), row(read));  // behind them
    mover->Flush();
    ASSERT_EQ(value(0), before);
    ASSERT_EQ(value(1), expected[read]);
    for (size_t i = 0; i < kRows; ++i) ASSERT_EQ(static_cast<int>(*row(i)), expected[i]) << "move " << move;
  }
}

TEST_F(DeviceRowMoverTest, BlocksOfSlotsGoToOtherMemoryOfTheDeviceInOrder) {
  std::mt19937 random(6);
  constexpr size_t kBlockRows = 4, kBlocks = kSlots / kBlockRows, kBlockBytes = kBlockRows * kRowBytes;
  for (const size_t staging_bytes : {size_t{1} << 20, size_t{1}}) {  // the latter runs full many times
    const auto mover = Mover(staging_bytes);
    std::memset(slots_->data(), 0, slots_->bytes());
    const auto arena = device_->Allocate(100 * kBlockBytes).value();
    std::vector<int> expected(kSlots, 0);
    for (int move = 0; move < 500; ++move) {
      const size_t written = random() % kSlots;
      expected[written] = static_cast<int>(random() % 256);
      mover->Write(slot(written), Row(expected[written]).data());  // before the blocks
      std::vector<BlockCopy> copies;
      std::vector<size_t> blocks;
      for (size_t i = random() % 100; i > 0; --i) {
        blocks.push_back(random() % kBlocks);
        copies.push_back({.to = static_cast<std::byte*>(arena->data()) + copies.size() * kBlockBytes,
                          .from = slot(blocks.back() * kBlockRows)});
      }
      mover->CopyBeside(copies, kBlockBytes);
      for (size_t i = 0; i < copies.size(); ++i) {
        for (size_t row = 0; row < kBlockRows; ++row) {
          ASSERT_EQ(static_cast<int>(static_cast<const std::byte*>(copies[i].to)[row * kRowBytes]),
                    expected[blocks[i] * kBlockRows + row])
              << "move " << move;
        }
      }
    }
  }
}

// The place of a prompt that goes layer by layer: a layer's rows are kept before those of the next take their place.
TEST_F(DeviceRowMoverTest, RowsOfOtherMemoryAreReadBeforeTheyAreWrittenAgain) {
  const auto mover = Mover(1 << 20);
  const auto arena = device_->Allocate(2 * kRowBytes).value();
  const auto row = [&](size_t i) { return static_cast<std::byte*>(arena->data()) + i * kRowBytes; };
  std::memset(arena->data(), 1, arena->bytes());
  for (int layer = 2; layer < 9; ++layer) {
    mover->Copy(slot(layer), row(0));
    mover->Copy(slot(20 + layer), row(1));
    auto rows = std::make_shared<std::vector<std::byte>>(Row(layer));
    rows->resize(2 * kRowBytes, std::byte(100 + layer));
    mover->WriteBeside({.to = row(0), .from = rows->data(), .piece_bytes = 2 * kRowBytes, .num_pieces = 1}, rows);
  }
  mover->Flush();
  for (int layer = 2; layer < 9; ++layer) {
    EXPECT_EQ(value(layer), layer - 1);
    EXPECT_EQ(value(20 + layer), layer == 2 ? 1 : 100 + layer - 1);
  }
}

// Slots of int8 have the codes of all rows in front and their scales behind them; everywhere else a row's scales lie
// behind its codes.
TEST_F(DeviceRowMoverTest, RowsOfInt8ArePartedInSlotsAndWholeElsewhere) {
  constexpr size_t kCodes = 64, kRow = kCodes + 8;
  const auto slots = device_->Allocate(kSlots * kRow).value();
  auto* const first = static_cast<std::byte*>(slots->data());
  const auto mover = DeviceRowMover::Create(test::HostGpuTable(), *device_, nullptr, first, kSlots,
                                            {.row_bytes = kRow, .int8_code_bytes = kCodes})
                         .value();
  const auto slot = [&](size_t i) { return first + i * kRow; };  // as a slot is named
  const auto row_of = [](int value) {
    std::vector<std::byte> row(kRow, std::byte(value));
    std::fill(row.begin() + kCodes, row.end(), std::byte(value + 100));
    return row;
  };
  for (int i = 0; i < 8; ++i) mover->Write(slot(i), row_of(i).data());
  mover->Copy(slot(30), slot(5));
  const auto arena = device_->Allocate(5 * kRow).value();
  auto* const rows = static_cast<std::byte*>(arena->data());
  const std::vector<std::byte> of_prompt = row_of(77);
  std::memcpy(rows + 4 * kRow, of_prompt.data(), kRow);
  mover->Copy(slot(39), rows + 4 * kRow);
  const std::vector<BlockCopy> blocks = {{.to = rows, .from = slot(2)}, {.to = rows + 2 * kRow, .from = slot(6)}};
  mover->CopyBeside(blocks, 2 * kRow);
  mover->Flush();
  const auto in_slot = [&](size_t i) {
    std::vector<std::byte> row(first + i * kCodes, first + (i + 1) * kCodes);
    const std::byte* const scales = first + kSlots * kCodes + i * 8;
    row.insert(row.end(), scales, scales + 8);
    return row;
  };
  for (int i = 0; i < 8; ++i) EXPECT_EQ(in_slot(i), row_of(i)) << "slot " << i;
  EXPECT_EQ(in_slot(30), row_of(5));
  EXPECT_EQ(in_slot(39), of_prompt);
  for (const auto& [place, value] : {std::pair(0, 2), {1, 3}, {2, 6}, {3, 7}}) {
    EXPECT_EQ(std::vector<std::byte>(rows + place * kRow, rows + (place + 1) * kRow), row_of(value));
  }
}

// Copies end when somebody waits for them, or `have_ended`.
class SlowDevice final : public device::FakeDevice {
 public:
  SlowDevice() : FakeDevice("slow") {}
  std::unique_ptr<device::Event> NewEvent() override { return std::make_unique<Copied>(*this); }
  bool have_ended = false;

 private:
  class Copied final : public device::Event {
   public:
    explicit Copied(const SlowDevice& device) : device_(device) {}
    void Record(device::Stream) override { has_ended_ = false; }
    void Hold(device::Stream) override {}
    absl::Status Wait() override {
      has_ended_ = true;
      return absl::OkStatus();
    }
    absl::StatusOr<bool> HasPassed() override { return has_ended_ || device_.have_ended; }

   private:
    const SlowDevice& device_;
    bool has_ended_ = true;
  };
};

class RowsOfPieces : public testing::Test {
 protected:
  // Each with rows of its own.
  void Write(int count) {
    for (int i = 0; i < count; ++i) {
      auto rows = std::make_shared<std::vector<std::byte>>(kRowBytes);
      mover_->WriteBeside({.to = arena_->data(), .from = rows->data(), .piece_bytes = kRowBytes, .num_pieces = 1},
                          rows);
      kept_.emplace_back(rows);
    }
  }
  int num_kept() const {
    return static_cast<int>(
        std::count_if(kept_.begin(), kept_.end(), [](const auto& rows) { return !rows.expired(); }));
  }

  SlowDevice device_;
  const std::unique_ptr<device::DeviceMemory> slots_ = device_.Allocate(kSlots * kRowBytes).value();
  const std::unique_ptr<device::DeviceMemory> arena_ = device_.Allocate(kRowBytes).value();
  const std::unique_ptr<DeviceRowMover> mover_ =
      DeviceRowMover::Create(test::HostGpuTable(), device_, nullptr, slots_->data(), kSlots, {.row_bytes = kRowBytes})
          .value();
  std::vector<std::weak_ptr<const void>> kept_;
};

TEST_F(RowsOfPieces, AreKeptUntilTheyHaveBeenRead) {
  Write(3);
  mover_->ReleaseRead();
  EXPECT_EQ(num_kept(), 3);
  device_.have_ended = true;
  EXPECT_EQ(num_kept(), 3);
  mover_->ReleaseRead();
  EXPECT_EQ(num_kept(), 0);
}

// They take room of the channel that they came by.
TEST_F(RowsOfPieces, AreFewAtATimeAndTheNewest) {
  Write(50);
  EXPECT_LT(num_kept(), 10);
  EXPECT_FALSE(kept_.back().expired());
  EXPECT_TRUE(kept_.front().expired());
}

TEST_F(RowsOfPieces, AreWaitedForAtTheEnd) {
  Write(50);
  mover_->ReleaseAll();
  EXPECT_EQ(num_kept(), 0);
}

// Rows for slots that the device fetches from where they lie.
class FetchedRows : public RowsOfPieces {
 protected:
  void WriteToSlots(size_t count) {
    auto rows = std::make_shared<std::vector<std::byte>>(count * kRowBytes);
    std::vector<uint32_t> places(count);
    for (size_t i = 0; i < count; ++i) places[i] = static_cast<uint32_t>(i % kSlots);
    mover_->WriteRows(places, 0, rows->data(), {}, rows);
    kept_.emplace_back(rows);
  }
};

TEST_F(FetchedRows, AreKeptUntilTheyHaveBeenFetched) {
  device_.have_ended = true;
  WriteToSlots(3);
  EXPECT_FALSE(mover_->ReleaseRead()) << "nothing has been launched";
  EXPECT_EQ(num_kept(), 1);
  device_.have_ended = false;
  mover_->Flush();
  EXPECT_FALSE(mover_->ReleaseRead());
  EXPECT_EQ(num_kept(), 1);
  device_.have_ended = true;
  EXPECT_TRUE(mover_->ReleaseRead());
  EXPECT_EQ(num_kept(), 0);
}

// The same slot twice starts a launch in the middle of them.
TEST_F(FetchedRows, AreKeptUntilTheLastOfThemHasBeenFetched) {
  WriteToSlots(kSlots + 1);
  device_.have_ended = true;
  mover_->ReleaseRead();
  EXPECT_EQ(num_kept(), 1);
}

TEST_F(FetchedRows, ManyAreFetchedBeforeAFlush) {
  WriteToSlots((size_t{1} << 20) / kRowBytes);
  device_.have_ended = true;
  EXPECT_TRUE(mover_->ReleaseRead());
  EXPECT_EQ(num_kept(), 0);
}

TEST_F(FetchedRows, AreFetchedBeforeAllAreReleased) {
  WriteToSlots(3);
  mover_->ReleaseAll();
  EXPECT_EQ(num_kept(), 0);
  EXPECT_EQ(std::memcmp(slots_->data(), std::vector<std::byte>(3 * kRowBytes).data(), 3 * kRowBytes), 0);
}

}  // namespace
}  // namespace winnow
