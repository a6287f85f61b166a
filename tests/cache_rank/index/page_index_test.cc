#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "cache_rank/store/sequence_kv.h"
#include "tests/cache_rank/reference.h"

namespace winnow {
namespace {

// Layer 0 of one head whose keys a test chooses.
class PageIndexTest : public testing::TestWithParam<std::tuple<uint32_t, Dtype, std::optional<Dtype>>> {
 protected:
  static constexpr int kDim = 6;
  PageIndexTest() : pool_(KvBlockPool::Create(size_t{1} << 20, layout_).value()) {
    SequenceKv created = SequenceKv::Create(pool_.get(), CpuKernels("portable").value(), layout_, 300, index_).value();
    kv_ = std::make_unique<SequenceKv>(std::move(created));
  }
  void Append(SequenceKv& kv, uint32_t count, uint64_t seed, float odd = 0) {
    const uint32_t first = kv.rows(0);
    std::vector<std::byte> rows;
    for (uint32_t p = first; p < first + count; ++p) {
      std::vector<double> key;
      for (int d = 0; d < 2 * kDim; ++d) {
        float x = 4 * test::Noise(seed, p, d);
        if (odd != 0 && p % 5 == 2 && d == 1) x = odd;
        uint32_t bits = std::bit_cast<uint32_t>(x);
        if (layout_.dtype == Dtype::kBf16) bits &= 0xffff0000u;
        if (d < kDim) key.push_back(std::bit_cast<float>(bits));
        const char* from = reinterpret_cast<const char*>(&bits) + (layout_.dtype == Dtype::kBf16 ? 2 : 0);
        const auto* bytes = reinterpret_cast<const std::byte*>(from);
        rows.insert(rows.end(), bytes, bytes + DtypeBytes(layout_.dtype));
      }
      keys_.resize(p);
      keys_.push_back(key);
    }
    ASSERT_TRUE(kv.Append(0, first, count, rows.data()).ok());
  }
  // Element d of a key of tiles that are of the rows' dtype or quantised.
  float Element(const void* const* tiles, std::optional<Dtype> quantised, uint32_t key, int dim, int d) const {
    const auto* tile = static_cast<const std::byte*>(tiles[key / 32]);
    const uint32_t slot = key % 32;
    if (quantised == Dtype::kI4) {
      float scale;
      std::memcpy(&scale, tile + (dim + 7) / 8 * 128 + slot * 4, 4);
      const int both = std::to_integer<int>(tile[(d / 8 * 32 + slot) * 4 + d % 4]);
      return static_cast<float>((d / 4 % 2 == 0 ? both % 16 : both / 16) - 8) * scale;
    }
    if (quantised == Dtype::kI8) {
      float scale;
      std::memcpy(&scale, tile + (dim + 3) / 4 * 128 + slot * 4, 4);
      return static_cast<float>(static_cast<int8_t>(tile[(d / 4 * 32 + slot) * 4 + d % 4])) * scale;
    }
    if (layout_.dtype == Dtype::kF32) return reinterpret_cast<const float*>(tile)[d * 32 + slot];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(tile)[(d / 2 * 32 + slot) * 2 + d % 2];
    return std::bit_cast<float>(uint32_t{bits} << 16);
  }
  void ExpectPages(const SequenceKv& kv, const std::vector<std::vector<double>>& keys) const {
    const HeadIndex index = kv.index(0, 0);
    const uint32_t page_tokens = index_.page_tokens;
    ASSERT_EQ(keys.size(), kv.rows(0));
    for (uint32_t page = 0; page < keys.size() / page_tokens; ++page) {
      double largest = 0;
      for (uint32_t r = page * page_tokens; r < (page + 1) * page_tokens; ++r) {
        for (double x : keys[r]) largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
      }
      const bool exact = !index_.key_dtype.has_value(), int4 = index_.key_dtype == Dtype::kI4;
      const std::optional<Dtype> page_dtype = exact ? std::nullopt : std::optional(Dtype::kI8);
      const double step = exact ? 0 : largest / 127;
      // How far a key as scored may lie outside: half a step of int8; of int4 the largest may be clipped from 9 to 8,
      // and its scale fits the other elements too.
      const double outside = int4 ? largest / 7 : step / 2;
      for (int d = 0; d < kDim; ++d) {
        double hi = -INFINITY, lo = INFINITY, sum = 0;
        for (uint32_t r = page * page_tokens; r < (page + 1) * page_tokens; ++r) {
          if (!std::isfinite(keys[r][d])) continue;
          hi = std::max(hi, keys[r][d]);
          lo = std::min(lo, keys[r][d]);
        }
        const float max = Element(index.bounds, page_dtype, page, 2 * kDim, d),
                    min = Element(index.bounds, page_dtype, page, 2 * kDim, kDim + d);
        if (exact) {
          EXPECT_EQ(max, hi);
          EXPECT_EQ(min, lo);
        } else {
          // Outwards by at most a step, of int4 keys a little more, and by as much as these lie outside.
          EXPECT_GE(max, hi) << page << " " << d;
          EXPECT_LE(min, lo) << page << " " << d;
          EXPECT_LE(max, hi + 1.2 * step + outside);
          EXPECT_GE(min, lo - 1.2 * step - outside);
        }
        for (uint32_t r = page * page_tokens; !exact && r < (page + 1) * page_tokens; ++r) {
          EXPECT_GE(max, Element(index.keys, index_.key_dtype, r, kDim, d)) << "the key as scored";
          EXPECT_LE(min, Element(index.keys, index_.key_dtype, r, kDim, d)) << "the key as scored";
        }
        const double centre = (hi + lo) / 2;
        for (uint32_t r = page * page_tokens; r < (page + 1) * page_tokens; ++r) {
          sum += std::isfinite(keys[r][d]) ? std::abs(keys[r][d] - centre) : 0;
        }
        const double radius = sum / page_tokens, rounding = 4.0 / 256 + step / 2;
        EXPECT_NEAR(Element(index.cuboids, page_dtype, page, 2 * kDim, d), centre + radius, rounding);
        EXPECT_NEAR(Element(index.cuboids, page_dtype, page, 2 * kDim, kDim + d), centre - radius, rounding);
      }
    }
  }

  const KvLayout layout_{
      .num_layers = 1, .num_query_heads = 1, .num_kv_heads = 1, .head_dim = kDim, .dtype = std::get<1>(GetParam())};
  const IndexLayout index_{
      .page_tokens = std::get<0>(GetParam()), .cuboid = true, .key_dtype = std::get<2>(GetParam())};
  std::unique_ptr<KvBlockPool> pool_;
  std::unique_ptr<SequenceKv> kv_;
  std::vector<std::vector<double>> keys_;
};

TEST_P(PageIndexTest, SummarisesCompletePagesHoweverRowsArrive) {
  for (const uint32_t count : {1u, 14u, 2u, 47u, 1u, 130u, 5u, 70u}) {
    Append(*kv_, count, 1);
    ExpectPages(*kv_, keys_);
  }
}

TEST_P(PageIndexTest, LeavesOutWhatIsNotFinite) {
  for (const float odd : {NAN, INFINITY, -INFINITY}) {
    ASSERT_TRUE(kv_->Truncate(0).ok());
    keys_.clear();
    Append(*kv_, 200, 2, odd);
    ExpectPages(*kv_, keys_);
  }
}

TEST_P(PageIndexTest, ForksAndRestartsKeepTheirOwnPages) {
  Append(*kv_, 170, 3);
  const auto source_keys = keys_;
  {
    SequenceKv fork = kv_->Fork(300).value();
    Append(fork, 100, 4);
    ExpectPages(fork, keys_);
    ExpectPages(*kv_, source_keys);
    ASSERT_TRUE(fork.Truncate(90).ok());
    keys_.resize(90);
    Append(fork, 150, 5);
    ExpectPages(fork, keys_);
    ExpectPages(*kv_, source_keys);
    const auto fork_keys = keys_;
    keys_ = source_keys;
    ASSERT_TRUE(kv_->Truncate(33).ok());
    keys_.resize(33);
    Append(*kv_, 200, 6);
    ExpectPages(*kv_, keys_);
    ExpectPages(fork, fork_keys);
  }
  kv_.reset();
  EXPECT_EQ(pool_->used(), 0u);
  EXPECT_EQ(pool_->reserved(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Formats, PageIndexTest,
                         testing::Combine(testing::Values(16u, 32u, 64u), testing::Values(Dtype::kF32, Dtype::kBf16),
                                          testing::Values(std::nullopt, Dtype::kI8, Dtype::kI4)));

TEST(PageIndex, IsReservedWithTheRows) {
  const KvLayout layout = test::SmallShape(1).layout;
  auto pool = KvBlockPool::Create(size_t{1} << 20, layout).value();
  const KernelTable* kernels = CpuKernels("portable").value();
  const auto reserved = [&](const IndexLayout& index) {
    const auto kv = SequenceKv::Create(pool.get(), kernels, layout, 1100, index).value();
    return pool->reserved() / layout.num_kv_heads;
  };
  EXPECT_EQ(reserved({}), 35u);
  EXPECT_EQ(reserved({.page_tokens = 16}), 35u + 3);                  // 68 pages
  EXPECT_EQ(reserved({.page_tokens = 32, .cuboid = true}), 35u + 4);  // 34 pages twice
}

}  // namespace
}  // namespace winnow
