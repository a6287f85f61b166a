#include "cache_rank/store/working_set_meter.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <set>

#include "common/base/kv_layout.h"

namespace winnow {
namespace {

TEST(WorkingSetMeterTest, IsTheUnionOfTheLastSelections) {
  std::mt19937 random(3);
  for (int repeat = 0; repeat < 20; ++repeat) {
    const uint32_t context = 1 + random() % 5000, min_rows = 1 + repeat % 3;
    WorkingSetMeter meter;
    std::deque<std::set<uint32_t>> window;
    for (int selection = 0; selection < 100; ++selection) {
      std::set<uint32_t> rows;
      // None at all, a few, or most of the context; and neighbours, which share blocks.
      const uint32_t count = random() % 4 == 0 ? 0 : 1 + random() % (random() % 2 == 0 ? 8 : context);
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t row = random() % context;
        rows.insert(row);
        rows.insert(std::min(row + 1, context - 1));
      }
      meter.Record(std::vector<uint32_t>(rows.begin(), rows.end()), min_rows);
      std::map<uint32_t, uint32_t> read;
      for (const uint32_t row : rows) ++read[row / kBlockTokens];
      std::set<uint32_t> blocks;
      for (const auto& [block, count] : read) {
        if (count >= min_rows) blocks.insert(block);
      }
      window.push_back(blocks);
      if (window.size() > WorkingSetMeter::kWindow) window.pop_front();
      std::set<uint32_t> all;
      for (const auto& one : window) all.insert(one.begin(), one.end());
      ASSERT_EQ(meter.blocks(), all.size()) << "selection " << selection << " of " << context << " positions";
    }
  }
}

}  // namespace
}  // namespace winnow
