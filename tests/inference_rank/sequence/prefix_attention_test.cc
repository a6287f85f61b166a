#include "inference_rank/sequence/prefix_attention.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

// 8 layers of 8 query and 2 kv heads of 64 in bf16: a token's rows take 8 * 2 * 256 = 4096 bytes, the query and the
// state of one token in one layer 8 * (64 + 66) * 4 = 4160.
PrefixCase Case(uint32_t cached, uint32_t tail) {
  return {.layout = {.num_layers = 8, .num_query_heads = 8, .num_kv_heads = 2, .head_dim = 64, .dtype = Dtype::kBf16},
          .prompt_tokens = cached + tail,
          .cached_tokens = cached,
          .can_be_remote = true,
          .sink_tokens = 4,
          .ring_tokens = 128};
}

TEST(PrefixAttention, CountsWhatTravelsEachWay) {
  const PrefixChoice choice = ChoosePrefixAttention(PrefixAttention::kAuto, Case(8128, 80));
  EXPECT_TRUE(choice.is_remote());
  EXPECT_EQ(choice.end_key, 8064u) << "whole key tiles";
  EXPECT_EQ(choice.first_row, 8064u);
  EXPECT_EQ(choice.sinks, 4u);
  EXPECT_EQ(choice.stream_back_bytes, 8128u * 4096);
  EXPECT_EQ(choice.remote_bytes, (4u + 64) * 4096 + (80u * 7 + 1) * 4160);
}

TEST(PrefixAttention, KeepsTheRowsOfTheRing) {
  PrefixCase prefix = Case(8192, 64);
  EXPECT_EQ(ChoosePrefixAttention(PrefixAttention::kAuto, prefix).first_row, 8192u - 64);
  prefix = Case(8192, 300);
  EXPECT_EQ(ChoosePrefixAttention(PrefixAttention::kAuto, prefix).first_row, 8192u);
  prefix.decodes_here = false;
  prefix.prompt_tokens = 8192 + 64;
  const PrefixChoice choice = ChoosePrefixAttention(PrefixAttention::kAuto, prefix);
  EXPECT_EQ(choice.first_row, 8192u);
  EXPECT_EQ(choice.sinks, 0u);
}

// Of the shape above behind 8,064 positions: 33 MB of rows, or 58 kB for each token of the tail. Attention to a
// position takes 0.5 ns for each of 8 heads, and 3 GB/s or 1 Gbit/s travel.
TEST(PrefixAttention, WeighsTimeThatIsMeasured) {
  const auto takes_remote = [](uint32_t tail, double bytes_per_us, double slowness) {
    PrefixCase prefix = Case(8064, tail);
    prefix.us_per_byte = 1 / bytes_per_us;
    prefix.us_per_position = 8 * 0.5e-3;
    prefix.remote_slowness = slowness;
    const PrefixChoice choice = ChoosePrefixAttention(PrefixAttention::kAuto, prefix);
    EXPECT_EQ(choice.is_remote(), choice.remote_us < choice.stream_back_us);
    return choice.is_remote();
  };
  EXPECT_TRUE(takes_remote(16, 3000, 1.25));
  EXPECT_FALSE(takes_remote(512, 3000, 1.25)) << "attention there costs more than rows here";
  EXPECT_TRUE(ChoosePrefixAttention(PrefixAttention::kAuto, Case(8064, 512)).is_remote()) << "though fewer bytes move";
  EXPECT_TRUE(takes_remote(512, 125, 1.25));
  EXPECT_FALSE(takes_remote(1024, 125, 1.25)) << "bytes move either way";
  EXPECT_TRUE(takes_remote(1024, 3000, 0.3)) << "cache ranks with more threads";
}

TEST(PrefixAttention, TheSlowestCacheRankCounts) {
  const PrefixShard one[] = {{.share = 1, .threads = 8}};
  EXPECT_DOUBLE_EQ(RemoteSlowness(8, one), 1.25);
  EXPECT_DOUBLE_EQ(RemoteSlowness(2, one), 1.25 / 4);
  const PrefixShard three[] = {
      {.share = 0.25, .threads = 4}, {.share = 0.5, .threads = 2}, {.share = 0.25, .threads = 1}};
  EXPECT_DOUBLE_EQ(RemoteSlowness(4, three), 1.25);
}

TEST(PrefixAttention, TakesTheWayThatMovesLess) {
  for (const uint32_t cached : {128u, 512u, 8192u}) {
    bool was_remote = true;
    for (uint32_t tail = 1; tail < 2 * cached; ++tail) {
      const PrefixChoice choice = ChoosePrefixAttention(PrefixAttention::kAuto, Case(cached, tail));
      EXPECT_EQ(choice.is_remote(), choice.remote_bytes < choice.stream_back_bytes);
      EXPECT_TRUE(was_remote || !choice.is_remote()) << "a longer tail never makes it better";
      was_remote = choice.is_remote();
    }
    EXPECT_FALSE(was_remote);
  }
}

TEST(PrefixAttention, IsForcedWhereItCanBe) {
  EXPECT_FALSE(ChoosePrefixAttention(PrefixAttention::kStreamBack, Case(8192, 64)).is_remote());
  EXPECT_TRUE(ChoosePrefixAttention(PrefixAttention::kRemote, Case(8192, 20'000)).is_remote());
}

TEST(PrefixAttention, StreamsBackWhereNothingElseIsRight) {
  for (const PrefixAttention wanted : {PrefixAttention::kAuto, PrefixAttention::kRemote}) {
    EXPECT_FALSE(ChoosePrefixAttention(wanted, Case(96, 64)).is_remote()) << "less than a key tile";
    PrefixCase prefix = Case(8192, 64);
    prefix.keeps_all_rows = true;
    EXPECT_FALSE(ChoosePrefixAttention(wanted, prefix).is_remote()) << "all rows are needed anyway";
    prefix.decodes_here = false;
    EXPECT_TRUE(ChoosePrefixAttention(wanted, prefix).is_remote()) << "but elsewhere";
    prefix.can_be_remote = false;
    EXPECT_FALSE(ChoosePrefixAttention(wanted, prefix).is_remote());
  }
}

}  // namespace
}  // namespace winnow
