#include "kernels/device/flash_d2h.h"

#include <algorithm>
#include <random>

#include "gtest/gtest.h"
#include "tests/kernels/device/fake_device.h"

namespace winnow::device {
namespace {

class FlashD2HTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, FlashD2HTest, testing::Values(1, 2, 5));

TEST_P(FlashD2HTest, EveryRowOfEverySaveReachesItsDestination) {
  constexpr size_t kRowBytes = 192, kMaxRows = 100, kPlaces = 3000;
  FakeDevice device("gpu");
  auto saver = FlashD2H::Create(device, kMaxRows * kRowBytes, GetParam());
  ASSERT_TRUE(saver.ok());
  std::mt19937 random(GetParam());
  std::vector<std::byte> kept(kPlaces * kRowBytes), wanted(kPlaces * kRowBytes);
  uint64_t ticket = 0;
  for (int save = 0; save < 300; ++save) {
    // Rows of several sizes, none, and as many as fit.
    const size_t row_bytes = save % 3 == 0 ? kRowBytes : 64;
    const size_t num_rows = save % 7 == 0 ? 0 : save % 5 == 0 ? kMaxRows : random() % kMaxRows;
    std::vector<std::byte> rows(num_rows * row_bytes);
    for (std::byte& byte : rows) byte = static_cast<std::byte>(random());
    std::vector<size_t> places(kPlaces);
    for (size_t i = 0; i < kPlaces; ++i) places[i] = i;
    std::vector<size_t> chosen;
    std::sample(places.begin(), places.end(), std::back_inserter(chosen), num_rows, random);
    std::shuffle(chosen.begin(), chosen.end(), random);
    std::vector<std::byte*> destinations;
    for (size_t i = 0; i < num_rows; ++i) {
      destinations.push_back(kept.data() + chosen[i] * kRowBytes);
      std::copy_n(rows.begin() + i * row_bytes, row_bytes, wanted.begin() + chosen[i] * kRowBytes);
    }
    // Two saves that follow each other may write one place in either order: let the first finish.
    (*saver)->Await(ticket);
    ticket = (*saver)->Save(nullptr, rows.data(), row_bytes, destinations);
  }
  (*saver)->Await(ticket);
  EXPECT_EQ(kept, wanted);
}

TEST_P(FlashD2HTest, SavesThatFollowEachOtherDoNotOverwriteWhatIsNotScatteredYet) {
  constexpr size_t kRowBytes = 64, kRows = 50, kSaves = 5000;  // more than there are numbers
  FakeDevice device("gpu");
  auto saver = FlashD2H::Create(device, kRows * kRowBytes, GetParam());
  ASSERT_TRUE(saver.ok());
  std::vector<std::byte> kept(kSaves * kRows * kRowBytes), rows(kRows * kRowBytes);
  uint64_t ticket = 0;
  for (size_t save = 0; save < kSaves; ++save) {
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::byte>(save * 31 + i);
    std::vector<std::byte*> destinations;
    for (size_t i = 0; i < kRows; ++i) destinations.push_back(kept.data() + (save * kRows + i) * kRowBytes);
    ticket = (*saver)->Save(nullptr, rows.data(), kRowBytes, destinations);
  }
  (*saver)->Await(ticket);
  for (size_t save = 0; save < kSaves; ++save) {
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(kept[save * rows.size() + i], static_cast<std::byte>(save * 31 + i)) << save;
    }
  }
}

TEST(FlashD2H, ThatNobodyUsedEnds) {
  FakeDevice device("gpu");
  EXPECT_TRUE(FlashD2H::Create(device, 1000, 3).ok());
}

}  // namespace
}  // namespace winnow::device
