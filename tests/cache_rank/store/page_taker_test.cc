#include "cache_rank/store/page_taker.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

namespace winnow {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class PageTakerTest : public testing::TestWithParam<int> {
 protected:
  PageTakerTest()
      : mapping_(static_cast<std::byte*>(
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
  ~PageTakerTest() override { munmap(mapping_, kBytes); }

  // Bytes of pages that the mapping has, from its beginning up to the first that it lacks.
  size_t Taken() const {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> resident(kBytes / page);
    EXPECT_EQ(mincore(mapping_, kBytes, resident.data()), 0);
    return page * static_cast<size_t>(std::find_if(resident.begin(), resident.end(),
                                                   [](unsigned char flags) { return (flags & 1) == 0; }) -
                                      resident.begin());
  }
  bool WaitUntilTaken(size_t bytes) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (Taken() < bytes && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return Taken() >= bytes;
  }

  static constexpr size_t kBytes = 200 * kMiB;
  std::byte* const mapping_;
};

TEST_P(PageTakerTest, TakesWhatIsWantedAndLittleMore) {
  if (madvise(mapping_ + kBytes - kMiB, 4096, 23) != 0) GTEST_SKIP() << "this kernel takes no pages ahead";
  PageTaker taker(mapping_, kBytes, GetParam());
  EXPECT_EQ(Taken(), 0u);
  taker.Want(40 * kMiB);
  ASSERT_TRUE(WaitUntilTaken(40 * kMiB));
  taker.Want(30 * kMiB);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_LE(Taken(), 66 * kMiB) << "a piece of 32 MiB is begun, and a huge page may reach over its end";
  taker.Want(2 * kBytes);
  ASSERT_TRUE(WaitUntilTaken(kBytes)) << "up to the end of the mapping";
}

TEST_P(PageTakerTest, LeavesWhatIsWrittenMeanwhile) {
  PageTaker taker(mapping_, kBytes, GetParam());
  taker.Want(kBytes);
  for (size_t at = 0; at < kBytes; at += 4096) mapping_[at] = static_cast<std::byte>(at / 4096 % 251 + 1);
  for (size_t at = 0; at < kBytes; at += 4096) {
    ASSERT_EQ(mapping_[at], static_cast<std::byte>(at / 4096 % 251 + 1)) << at;
    ASSERT_EQ(mapping_[at + 1], std::byte{0}) << at;
  }
}

TEST_P(PageTakerTest, EndsWithWorkLeft) {
  PageTaker taker(mapping_, kBytes, GetParam());
  taker.Want(kBytes);
}

INSTANTIATE_TEST_SUITE_P(Threads, PageTakerTest, testing::Values(1, 3));

}  // namespace
}  // namespace winnow
