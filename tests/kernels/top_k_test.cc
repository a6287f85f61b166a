#include <algorithm>
#include <numeric>

#include "tests/kernels/kernel_test.h"

namespace winnow {
namespace {

class TopKTest : public KernelTest {
 protected:
  void Check(const std::vector<float>& values, uint32_t first, uint32_t last, uint32_t k) {
    const uint32_t n = last - first;
    const uint32_t wanted = std::min(k, n);
    constexpr uint32_t kUntouched = 0xabababab;
    std::vector<uint32_t> indices(wanted + 32, kUntouched);
    std::vector<uint32_t> scratch(TopKScratchWords(n) + 1, kUntouched);
    kernels().top_k({values.data(), first, last, k, indices.data(), scratch.data()});

    std::vector<uint32_t> order(n);
    std::iota(order.begin(), order.end(), first);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return values[a] > values[b]; });
    order.resize(wanted);
    std::sort(order.begin(), order.end());
    ASSERT_TRUE(std::equal(order.begin(), order.end(), indices.begin())) << "n " << n << " k " << k;
    for (uint32_t i = wanted; i < indices.size(); ++i) ASSERT_EQ(indices[i], kUntouched) << "wrote past the end";
    ASSERT_EQ(scratch.back(), kUntouched);
  }
};
WINNOW_FOR_EACH_TABLE(TopKTest);

TEST_P(TopKTest, EverySmallSize) {
  std::mt19937 random(1);
  for (uint32_t n = 0; n <= 70; ++n) {
    const std::vector<float> values = RandomFloats(random, n + 5);
    for (uint32_t k = 0; k <= n + 2; ++k) Check(values, 3, n + 3, k);
  }
}

TEST_P(TopKTest, TiesGoToTheLowerIndex) {
  std::mt19937 random(2);
  for (uint32_t levels : {1u, 2u, 5u}) {
    std::vector<float> values(3000);
    for (float& v : values) v = static_cast<float>(random() % levels) - 1;
    for (uint32_t k : {1u, 2u, 100u, 1500u, 2999u, 3000u}) Check(values, 0, 3000, k);
  }
}

TEST_P(TopKTest, PositiveZeroTiesWithNegativeZero) {
  std::vector<float> values(40, 0.0f);
  for (size_t i = 0; i < values.size(); i += 3) values[i] = -0.0f;
  for (uint32_t k : {1u, 7u, 20u, 39u}) Check(values, 0, 40, k);
}

// Values that share their upper digits are told apart by the last bits.
TEST_P(TopKTest, NeighbouringFloats) {
  std::mt19937 random(3);
  std::vector<float> values(5000);
  for (float& v : values) {
    const uint32_t bits = 0x3f800000u + random() % 3000;
    std::memcpy(&v, &bits, 4);
    if (random() % 2 == 0) v = -v;
  }
  for (uint32_t k : {1u, 17u, 2500u, 4000u}) Check(values, 11, 4990, k);
}

TEST_P(TopKTest, LargeAndSpecial) {
  std::mt19937 random(4);
  std::vector<float> values = RandomFloats(random, 20000);
  for (size_t i = 0; i < values.size(); i += 5) values[i] = std::exp(-30 * std::fabs(values[i]));
  values[7] = std::numeric_limits<float>::infinity();
  values[19999] = std::numeric_limits<float>::infinity();
  for (size_t i = 50; i < 900; ++i) values[i] = -std::numeric_limits<float>::infinity();
  for (uint32_t k : {1u, 2u, 2048u, 19100u, 19500u, 19999u}) Check(values, 0, 20000, k);
}

}  // namespace
}  // namespace winnow
