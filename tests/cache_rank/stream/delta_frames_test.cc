#include "cache_rank/stream/delta_frames.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "tests/cache_rank/store/stored_keys.h"
#include "transport/wire/crc32c.h"

namespace winnow::test {
namespace {

constexpr uint32_t kRows = 150;

class DeltaFramesTest : public testing::Test {
 protected:
  DeltaFramesTest() {
    for (uint32_t i = 0; i < kRows; ++i) {
      delta_.selected.push_back(i);
      delta_.streamed.push_back(i);
      delta_.streamed_positions.push_back(i);
    }
  }
  // Frame i is that of kv head i % 2.
  void Fill(DeltaFrames& frames, int count) {
    frames.Clear();
    payloads_.assign(count, {});
    for (int i = 0; i < count; ++i) {
      DeltaFrame& frame = frames.Next();
      ASSERT_TRUE(frame.Add({.delta = &delta_, .kv = &stored_.kv, .layer = 0, .kv_head = i % 2, .begins = true}));
      payloads_[i].assign(frame.bytes(), std::byte{0xa5});
      frames.Take(SendBuffer(payloads_[i], &given_back_,
                             [](void* given_back, std::byte*) { ++*static_cast<int*>(given_back); }));
    }
  }

  const StoredKeys stored_{SmallShape(1), /*seed=*/3, /*count=*/160};
  HeadDelta delta_;
  std::vector<std::vector<std::byte>> payloads_;
  int given_back_ = 0;
};

TEST_F(DeltaFramesTest, EachFrameLeavesInItsTurnWithAllOfItsRowsAndTheirChecksum) {
  const KernelTable& kernels = *CpuKernels().value();
  for (const int threads : {1, 4}) {
    const std::unique_ptr<Executor> team = kernels.new_executor(threads);
    DeltaFrames frames(/*frame_bytes=*/1 << 20);
    for (int round = 0; round < 50; ++round) {
      Fill(frames, 6);
      std::vector<size_t> posted;
      frames.Send(team.get(), [&](size_t i, SendBuffer buffer) {
        posted.push_back(i);
        EXPECT_EQ(buffer.payload().data(), payloads_[i].data());
        EXPECT_EQ(buffer.checksum(), Crc32c(payloads_[i]));
        const size_t row_bytes = stored_.kv.layout().row_bytes();
        std::vector<std::byte> rows(kRows * row_bytes);
        stored_.kv.CopyRows(0, static_cast<int>(i % 2), 0, kRows, rows.data());
        EXPECT_TRUE(std::equal(rows.begin(), rows.end(), payloads_[i].end() - static_cast<ptrdiff_t>(rows.size())));
        return true;
      });
      ASSERT_EQ(posted, (std::vector<size_t>{0, 1, 2, 3, 4, 5})) << threads << " threads";
    }
  }
}

TEST_F(DeltaFramesTest, NoneLeavesBehindOneThatCouldNotAndTheirBuffersGoBack) {
  DeltaFrames frames(/*frame_bytes=*/1 << 20);
  Fill(frames, 4);
  size_t posted = 0;
  frames.Send(nullptr, [&](size_t i, SendBuffer buffer) {
    if (i == 1) return false;
    (void)buffer.Release();
    ++posted;
    return true;
  });
  EXPECT_EQ(posted, 1u);
  EXPECT_EQ(given_back_, 3);
}

}  // namespace
}  // namespace winnow::test
