#include "cache_rank/selection_window.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <set>

namespace winnow {
namespace {

TEST(SelectionWindow, CountsRowsOfTheNewestSelectionsOnce) {
  SelectionWindow window;
  EXPECT_EQ(window.rows(), 0u);
  const std::vector<uint32_t> first = {4, 8}, second = {8, 100};
  window.Add(first);
  window.Add(second);
  EXPECT_EQ(window.rows(), 3u);
  for (int i = 0; i < SelectionWindow::kSelections - 1; ++i) window.Add(second);
  EXPECT_EQ(window.rows(), 2u) << "row 4 was selected too long ago";
  window.Clear();
  EXPECT_EQ(window.rows(), 0u);
}

// Long enough for the numbers of selections to start again several times.
TEST(SelectionWindow, AgreesWithTheUnionOfTheListsThemselves) {
  std::mt19937 random(3);
  SelectionWindow window;
  std::deque<std::vector<uint32_t>> newest;
  for (int step = 0; step < 1500; ++step) {
    const uint32_t positions = 50 + static_cast<uint32_t>(step) / 4;
    // A region that moves slowly, so that rows come back after any time.
    const uint32_t center = static_cast<uint32_t>(step) * 7 / 5 % positions;
    std::set<uint32_t> rows;
    for (int i = std::uniform_int_distribution<int>(0, 20)(random); i > 0; --i) {
      rows.insert((center + std::uniform_int_distribution<uint32_t>(0, 25)(random)) % positions);
    }
    newest.emplace_back(rows.begin(), rows.end());
    if (newest.size() > SelectionWindow::kSelections) newest.pop_front();
    window.Add(newest.back());
    std::set<uint32_t> all;
    for (const std::vector<uint32_t>& selected : newest) all.insert(selected.begin(), selected.end());
    ASSERT_EQ(window.rows(), all.size()) << "after selection " << step;
  }
}

}  // namespace
}  // namespace winnow
