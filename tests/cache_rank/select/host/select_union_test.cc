#include "cache_rank/select/host/select_union.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "tests/cache_rank/store/stored_keys.h"

namespace winnow {
namespace {

using Lists = std::vector<std::vector<uint32_t>>;

Lists RandomLists(std::mt19937& random, int heads, uint32_t first, uint32_t end, uint32_t most) {
  Lists lists(heads);
  for (std::vector<uint32_t>& list : lists) {
    std::set<uint32_t> rows;
    for (uint32_t i = random() % (most + 1); i > 0; --i) rows.insert(first + random() % (end - first));
    list.assign(rows.begin(), rows.end());
  }
  return lists;
}

TEST(SelectUnion, NamesForEachRowTheHeadsWhoseListHoldsIt) {
  std::mt19937 random(3);
  std::vector<QueryHeadMask> marks;  // of one worker, for all calls
  for (int round = 0; round < 300; ++round) {
    const int heads = 1 + round % kMaxMaskedHeads;
    const uint32_t end = round % 7 == 0 ? 5000 : 60;
    const Lists lists = RandomLists(random, heads, 4, end, round % 5 == 0 ? 2 : 50);
    std::vector<uint32_t> rows{1, 2, 3};  // of an earlier use
    std::vector<QueryHeadMask> members{1};
    UniteLists(lists, marks, &rows, &members);
    std::map<uint32_t, uint32_t> expected;
    for (int head = 0; head < heads; ++head) {
      for (const uint32_t row : lists[head]) expected[row] |= 1u << head;
    }
    ASSERT_EQ(rows.size(), expected.size());
    ASSERT_EQ(members.size(), expected.size());
    size_t i = 0;
    for (const auto& [row, mask] : expected) {
      ASSERT_EQ(rows[i], row);
      ASSERT_EQ(members[i++], mask);
    }
    Lists split(heads, {7, 8});
    SplitUnion(rows, members, split);
    ASSERT_EQ(split, lists);
  }
}

// Sel of the heads together is what SelectHead finds for each of them, and so is the captured mass of both positions
// that can be measured.
TEST(SelectUnion, HoldsTheListsOfSelectHead) {
  ServedShape shape = test::SmallShape(1);
  shape.layout.num_query_heads = 3 * shape.layout.num_kv_heads;
  shape.model.group_size = 3;
  const KernelTable& kernels = *CpuKernels("portable").value();
  const test::StoredKeys stored(shape, 5, 500);
  SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  SelectScratch scratch, other_scratch;
  const auto draw = [&](uint64_t seed) {
    std::vector<float> q;
    for (int i = 0; i < 3 * shape.layout.head_dim; ++i) q.push_back(2 * test::Noise(seed, i));
    return q;
  };
  for (const ListPer list_per : {ListPer::kQueryHead, ListPer::kKvHead}) {
    spec.list_per = list_per;
    Lists lists(list_per == ListPer::kQueryHead ? 3 : 1);
    std::vector<uint32_t> rows;
    std::vector<QueryHeadMask> members;
    for (uint32_t position = 300; position < 310; ++position) {
      const std::vector<float> target = draw(position), before = draw(position + 1000);
      HeadQuestion question{.spec = &spec,
                            .position = position,
                            .budget_tokens = 48,
                            .index = stored.kv.index(0, 1),
                            .target = target.data()};
      if (position % 3 == 1) question.measured = before.data(), question.measured_position = position - 1;
      if (position % 3 == 2) question.measured = target.data(), question.measured_position = position;
      const float mass = SelectUnion(kernels, shape.model, question, scratch, &rows, &members).mass;
      const float expected = SelectHead(kernels, shape.model, question, other_scratch, lists).mass;
      EXPECT_EQ(std::isnan(mass), position % 3 == 0);
      EXPECT_TRUE(mass == expected || position % 3 == 0) << position;
      if (list_per == ListPer::kKvHead) {
        EXPECT_EQ(rows, lists[0]);
        EXPECT_TRUE(members.empty());
        continue;
      }
      Lists split(3);
      SplitUnion(rows, members, split);
      EXPECT_EQ(split, lists);
      EXPECT_GT(rows.size(), 48u);
      EXPECT_LT(rows.size(), 3 * 48u);
    }
  }
}

}  // namespace
}  // namespace winnow
