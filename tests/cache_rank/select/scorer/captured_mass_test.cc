#include "cache_rank/select/scorer/captured_mass.h"

#include <gtest/gtest.h>

#include "tests/cache_rank/store/stored_keys.h"

namespace winnow {
namespace {

TEST(CapturedMass, IsTheSoftmaxShareOfTheAttendedSet) {
  const ServedShape shape = test::SmallShape(1);
  const KernelTable& kernels = *CpuKernels("portable").value();
  const test::StoredKeys stored(shape, 3, 200);
  const int dim = shape.layout.head_dim;
  for (const uint32_t position : {40u, 100u, 199u}) {
    std::vector<float> queries;
    std::vector<test::Vector> reference(2);
    for (int i = 0; i < 2 * dim; ++i) {
      queries.push_back(2 * test::Noise(position, i));
      reference[i / dim].push_back(queries.back());
    }
    const KeyTable keys{stored.kv.tiles(0, 0), position + 1, dim, shape.layout.dtype};
    SoftmaxScratch scratch;
    const Softmaxes softmaxes = SoftmaxKeys(kernels, keys, queries.data(), 2, {1}, scratch);
    const std::vector<uint32_t> selected{5, 9, 17};
    const AttendedSet attended{
        .sink_tokens = 4, .selected = selected, .recent_start = position - 10, .position = position};
    const double expected = test::MassReference(reference, stored.Keys(0, position + 1), 1, 4, selected, position - 10);
    EXPECT_NEAR(CapturedMass(softmaxes, nullptr, attended), expected, 1e-5);
    const AttendedSet everything{.sink_tokens = 4, .selected = {}, .recent_start = 4, .position = position};
    EXPECT_NEAR(CapturedMass(softmaxes, nullptr, everything), 1, 1e-5);

    // The same with the last row apart.
    ScratchBuffer<float> buffer;
    const Scores scores = ScoreKeys(kernels, keys, queries.data(), 2, {1}, buffer);
    const std::vector<float> own{scores.row(0)[position], scores.row(1)[position]};
    const KeyTable before{keys.tiles, position, dim, keys.dtype};
    const Softmaxes without = SoftmaxKeys(kernels, before, queries.data(), 2, {1}, scratch);
    EXPECT_NEAR(CapturedMass(without, own.data(), attended), expected, 1e-5);
  }
}

}  // namespace
}  // namespace winnow
