#include "inference_rank/memory/working_set.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <set>

namespace winnow {
namespace {

// Rows whose contents name their (layer, kv head, position), so that any mix-up shows.
class WorkingSetTest : public ::testing::Test {
 protected:
  static constexpr int kLayers = 2, kHeads = 3;
  const KvLayout layout_{kLayers, 6, kHeads, 4, Dtype::kF32};

  std::vector<float> Row(int layer, int head, uint32_t position) const {
    std::vector<float> row(2 * layout_.head_dim);
    for (size_t i = 0; i < row.size(); ++i)
      row[i] = static_cast<float>(position * 1000 + layer * 100 + head * 10) + 0.5f * i;
    return row;
  }
  void Write(WorkingSet& set, uint32_t position) const {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kHeads; ++head) set.WriteRow(layer, head, position, Row(layer, head, position).data());
    }
  }
  void Load(WorkingSet& set, uint32_t first, uint32_t count, uint32_t next) const {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kHeads; ++head) {
        std::vector<float> rows;
        for (uint32_t p = first; p < first + count; ++p) {
          const std::vector<float> row = Row(layer, head, p);
          rows.insert(rows.end(), row.begin(), row.end());
        }
        set.LoadRows(layer, head, first, count, reinterpret_cast<const std::byte*>(rows.data()), next);
      }
    }
  }
  // The positions that a list's slots hold, found by their contents.
  std::vector<uint32_t> Positions(const SlotPool& slots, const WorkingSet& set, int layer, int head,
                                  int query_head = 0) const {
    std::vector<uint32_t> positions;
    for (uint32_t slot : set.Slots(layer, head, query_head)) {
      float first;
      std::memcpy(&first, slots.row(slot), sizeof first);
      const uint32_t position = static_cast<uint32_t>(first) / 1000;
      EXPECT_EQ(std::memcmp(slots.row(slot), Row(layer, head, position).data(), layout_.row_bytes()), 0);
      positions.push_back(position);
    }
    return positions;
  }
  static std::vector<uint32_t> Range(uint32_t first, uint32_t end) {
    std::vector<uint32_t> range;
    for (uint32_t p = first; p < end; ++p) range.push_back(p);
    return range;
  }
  SlotPool Pool(uint32_t pages) const { return *SlotPool::Create(layout_.row_bytes(), pages); }
};

TEST_F(WorkingSetTest, AttendsToEveryPositionInOrderWhileEverythingFits) {
  for (uint32_t prompt : {1u, 3u, 4u, 5u, 64u, 97u, 300u}) {
    const SelectionSpec spec{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
    SlotPool slots = Pool(400);
    {
      auto set = WorkingSet::Create(slots, layout_, spec, 700, prompt);
      ASSERT_TRUE(set.ok()) << set.status();
      Load(*set, 0, prompt, prompt);
      set->FinishLoad(prompt);
      for (uint32_t p = prompt; p < prompt + 200; ++p) {
        set->Advance(p);
        Write(*set, p);
        ASSERT_EQ(Positions(slots, *set, 1, 2), Range(0, p + 1)) << "prompt " << prompt << ", position " << p;
      }
    }
    EXPECT_EQ(slots.free_pages(), slots.num_pages());
  }
}

TEST_F(WorkingSetTest, DenseListsHoldEveryPositionAtItsPlaceInTheirPages) {
  const SelectionSpec spec{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  constexpr uint32_t kPrompt = 130, kMost = 300, kTablePages = 7;
  SlotPool slots = Pool(100);
  auto set = WorkingSet::Create(slots, layout_, spec, kMost, kPrompt);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->num_pages(), kLayers * kHeads * 5u) << "no more than whole pages for every position";
  EXPECT_EQ(set->resident_rows(), kLayers * kHeads * uint64_t{kMost});
  Load(*set, 0, kPrompt, kPrompt);
  set->FinishLoad(kPrompt);
  for (uint32_t p = kPrompt; p < kMost; ++p) Write(*set, p);
  const std::vector<uint32_t> pages = set->PagesOfLists(WholeModel(layout_), kTablePages);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kHeads; ++head) {
      const uint32_t* const table = &pages[layout_.list(layer, head) * kTablePages];
      for (uint32_t p = 0; p < kMost; ++p) {
        const std::byte* const row = slots.row(table[p / kSlotPageTokens] * kSlotPageTokens + p % kSlotPageTokens);
        ASSERT_EQ(row, set->PlaceOfRow(layer, head, p));
        ASSERT_EQ(std::memcmp(row, Row(layer, head, p).data(), layout_.row_bytes()), 0) << "position " << p;
      }
    }
  }
}

TEST_F(WorkingSetTest, SetsThatBeginAlikeShareTheirFirstPages) {
  const SelectionSpec spec{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  constexpr uint32_t kMost = 300, kPagesPerList = 5, kLists = kLayers * kHeads;
  SlotPool slots = Pool(100);
  ResidentPrefixes prefixes(slots, kLists);
  const std::vector<uint32_t> tokens(200, 9);
  const ResidentPrefixes::Key key{.salt = "", .tokens = tokens, .shared_tokens = 200, .index = 1};
  const auto new_set = [&] { return WorkingSet::Create(slots, layout_, spec, kMost, 200, {}, prefixes.Find(key)); };
  const auto keep = [&](WorkingSet& set) {
    set.Share(prefixes.Insert(key, [&](size_t list, uint32_t column) { return set.PageOf(list, column); }));
  };
  {
    auto first = new_set(), twin = new_set();
    ASSERT_TRUE(first.ok() && twin.ok());
    Load(*first, 0, 200, 200);
    Load(*twin, 0, 200, 200);
    EXPECT_EQ(slots.free_pages(), 100 - 2 * kLists * kPagesPerList);
    keep(*first);
    EXPECT_EQ(first->shared_positions(), 192u);
    EXPECT_EQ(slots.free_pages(), 100 - 2 * kLists * kPagesPerList) << "they are the set's no longer, and as many";
    keep(*twin);
    EXPECT_EQ(slots.free_pages(), 100 - kLists * (kPagesPerList + 2)) << "both had computed them";
    EXPECT_EQ(twin->PlaceOfRow(1, 2, 191), first->PlaceOfRow(1, 2, 191));
    EXPECT_NE(twin->PlaceOfRow(1, 2, 192), first->PlaceOfRow(1, 2, 192));
    first->SetIndexed();
    EXPECT_EQ(twin->indexed_positions(), 192u);
  }
  EXPECT_EQ(prefixes.idle_pages(), 3 * kLists);
  EXPECT_EQ(slots.free_pages() + prefixes.idle_pages(), 100u);
  auto next = new_set();
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->indexed_positions(), 192u);
  // Shared rows are there, and are not written again.
  const std::vector<float> others(250 * 2 * layout_.head_dim, -1);
  next->LoadRows(0, 1, 0, 200, reinterpret_cast<const std::byte*>(others.data()), 200);
  EXPECT_EQ(std::memcmp(next->PlaceOfRow(0, 1, 191), Row(0, 1, 191).data(), layout_.row_bytes()), 0);
  EXPECT_EQ(std::memcmp(next->PlaceOfRow(0, 1, 192), others.data(), layout_.row_bytes()), 0);
  // A prompt in prefill takes them from there.
  for (const uint32_t count : {192u, 160u, 64u, 32u}) {
    auto arena = PrefillArena::Create(layout_, 200);
    ASSERT_TRUE(arena.ok());
    for (int layer = 0; layer < kLayers; ++layer) next->CopyShared(layer, count, *arena);
    for (int list = 0; list < static_cast<int>(kLists); ++list) {
      const int layer = list / kHeads, head = list % kHeads;
      for (uint32_t p = 0; p < 200; ++p) {
        const std::vector<float> expected = p < count ? Row(layer, head, p) : std::vector<float>(2 * layout_.head_dim);
        ASSERT_EQ(std::memcmp(arena->row(layer, head, p), expected.data(), layout_.row_bytes()), 0) << p;
      }
    }
  }
}

// Whole pages and the rows behind them, of every list, and nothing behind these.
TEST_F(WorkingSetTest, ListsByPositionTakeAPromptFromItsPlaceInPrefill) {
  constexpr uint32_t kPrompt = 200;
  auto arena = PrefillArena::Create(layout_, kPrompt);
  ASSERT_TRUE(arena.ok());
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kHeads; ++head) {
      for (uint32_t p = 0; p < kPrompt; ++p) {
        std::memcpy(arena->row(layer, head, p), Row(layer, head, p).data(), layout_.row_bytes());
      }
    }
  }
  const SelectionSpec dense{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  for (const uint32_t count : {1u, 64u, 130u, kPrompt}) {
    SlotPool slots = Pool(100);
    auto set = WorkingSet::Create(slots, layout_, dense, 250, kPrompt, SlotOrder::kByPosition);
    ASSERT_TRUE(set.ok());
    const std::vector<std::byte> before(layout_.row_bytes());
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kHeads; ++head) {
        for (uint32_t p = 0; p < 250; ++p) set->WriteRow(layer, head, p, before.data());
      }
      set->CopyPrompt(layer, count, *arena);
      for (int head = 0; head < kHeads; ++head) {
        for (uint32_t p = 0; p < 250; ++p) {
          const void* const expected = p < count ? static_cast<const void*>(arena->row(layer, head, p)) : before.data();
          ASSERT_EQ(std::memcmp(set->PlaceOfRow(layer, head, p), expected, layout_.row_bytes()), 0)
              << count << ": " << p;
        }
      }
    }
  }
}

TEST_F(WorkingSetTest, ASelectionIsAttendedBetweenSinksAndRecentWindow) {
  const SelectionSpec spec{.budget_tokens = 16, .sink_tokens = 4, .recent_tokens = 64, .pool_factor = 2};
  SlotPool slots = Pool(100);
  auto set = WorkingSet::Create(slots, layout_, spec, 5000, 1000);
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(set->pool_slots(0, 0), 32u);
  const uint32_t prompt = 1000;
  Load(*set, 0, 4, prompt);
  Load(*set, prompt - set->ring_tokens(), set->ring_tokens(), prompt);
  set->FinishLoad(prompt);

  std::mt19937 random(7);
  std::vector<std::vector<uint32_t>> resident(kLayers * kHeads, std::vector<uint32_t>(32, UINT32_MAX));
  for (uint32_t p = prompt; p < prompt + 150; ++p) {
    const uint32_t recent = RecentStart(p, 64, 4, kBlockTokens);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kHeads; ++head) {
        std::set<uint32_t> selected = {recent - 1};  // has just left the window: still in the ring
        while (selected.size() < 16) selected.insert(4 + random() % (recent - 4));
        std::vector<uint32_t>& pool = resident[layer * kHeads + head];
        std::vector<uint32_t> indices, streamed;
        std::vector<wire::LocalRow> local;
        std::vector<float> rows;
        uint32_t index = p % 16;
        for (uint32_t position : selected) {
          pool[index] = position;
          indices.push_back(index);
          if (position + set->ring_tokens() > p) {
            local.push_back({index, position});
          } else {
            streamed.push_back(index);
            const std::vector<float> row = Row(layer, head, position);
            rows.insert(rows.end(), row.begin(), row.end());
          }
          ++index;
        }
        ASSERT_FALSE(local.empty());
        ASSERT_TRUE(set->SetSelection(layer, head, p, indices).ok());
        ASSERT_TRUE(set->CommitLocal(layer, head, p, local).ok());
        ASSERT_TRUE(set->CommitStreamed(layer, head, streamed, reinterpret_cast<const std::byte*>(rows.data())).ok());
      }
    }
    Write(*set, p);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kHeads; ++head) {
        const std::vector<uint32_t> attended = Positions(slots, *set, layer, head);
        EXPECT_EQ(attended.size(), 4 + 16 + (p - recent + 1));
        EXPECT_TRUE(std::is_sorted(attended.begin(), attended.end()));
        EXPECT_EQ(std::vector<uint32_t>(attended.begin(), attended.begin() + 4), Range(0, 4));
        EXPECT_EQ(std::vector<uint32_t>(attended.begin() + 20, attended.end()), Range(recent, p + 1));
      }
    }
  }
}

// The first set has every other one of the lowest pages, so that the second's lie apart.
TEST_F(WorkingSetTest, ASelectionIsFoundInPagesThatLieApartAsInThoseInOnePiece) {
  const SelectionSpec spec{.budget_tokens = 300, .sink_tokens = 4, .recent_tokens = 64, .pool_factor = 1};
  for (const bool apart : {false, true}) {
    SlotPool slots = Pool(200);
    std::vector<uint32_t> taken = slots.Allocate(100).value(), given_back;
    for (const uint32_t page : taken) {
      if (!apart || page % 2 == 0) given_back.push_back(page);
    }
    std::erase_if(taken, [&](uint32_t page) { return std::count(given_back.begin(), given_back.end(), page) > 0; });
    std::sort(given_back.rbegin(), given_back.rend());
    slots.Free(given_back);
    {
      WorkingSet set = WorkingSet::Create(slots, layout_, spec, 5000, 1000).value();
      Load(set, 0, 4, 1000);
      Load(set, 1000 - set.ring_tokens(), set.ring_tokens(), 1000);
      set.FinishLoad(1000);
      Write(set, 1000);
      // Pool index i gets position 4 + i, and every third of them is selected.
      const uint32_t pool = set.pool_slots(0, 0);
      std::vector<uint32_t> streamed = Range(0, pool), selected, expected;
      for (uint32_t i = 0; i < pool; i += 3) {
        selected.push_back(i);
        expected.push_back(4 + i);
      }
      for (int head = 0; head < kHeads; ++head) {
        std::vector<float> rows;
        for (const uint32_t i : streamed) {
          const std::vector<float> row = Row(1, head, 4 + i);
          rows.insert(rows.end(), row.begin(), row.end());
        }
        ASSERT_TRUE(set.SetSelection(1, head, 1000, selected).ok());
        ASSERT_TRUE(set.CommitStreamed(1, head, streamed, reinterpret_cast<const std::byte*>(rows.data())).ok());
        const std::vector<uint32_t> attended = Positions(slots, set, 1, head);
        ASSERT_GE(attended.size(), 4 + expected.size());
        const auto first = attended.begin() + 4;
        EXPECT_EQ(std::vector<uint32_t>(first, first + static_cast<ptrdiff_t>(expected.size())), expected) << apart;
      }
    }
    slots.Free(taken);
  }
}

TEST_F(WorkingSetTest, GoesFromAttendingEverythingToASelectionWithThePoolFilled) {
  const SelectionSpec spec{.budget_tokens = 64, .sink_tokens = 4, .recent_tokens = 64, .pool_factor = 1};
  SlotPool slots = Pool(100);
  auto set = WorkingSet::Create(slots, layout_, spec, 5000, 1000);
  ASSERT_TRUE(set.ok());
  Load(*set, 0, 10, 10);
  set->FinishLoad(10);
  uint32_t p = 10;
  for (; set->AttendsEverything(0, p); ++p) {
    set->Advance(p);
    Write(*set, p);
    ASSERT_EQ(Positions(slots, *set, 0, 0), Range(0, p + 1));
  }
  const uint32_t pooled = RecentStart(p - 1, 64, 4, kBlockTokens) - 4;
  EXPECT_EQ(p, 4u + 64 + 64 + 28 - 1);  // the first position whose window starts more than the budget above the sinks
  std::vector<uint32_t> identity = Range(0, pooled);
  ASSERT_TRUE(set->SetSelection(0, 0, p, identity).ok());
  Write(*set, p);
  const std::vector<uint32_t> attended = Positions(slots, *set, 0, 0);
  EXPECT_EQ(std::vector<uint32_t>(attended.begin(), attended.begin() + 4 + pooled), Range(0, 4 + pooled));
}

// What a cache rank's GPU is told of a working set: where its slots lie, list by list.
TEST_F(WorkingSetTest, NamesTheSlotPagesOfItsLists) {
  SlotPool slots = Pool(200);
  SelectionSpec spec;
  spec.budget_tokens = 100;
  spec.head_budgets.assign(layout_.num_lists(), 100);
  spec.head_budgets[1] = 300;
  const WorkingSet set = *WorkingSet::Create(slots, layout_, spec, 2000, 10);
  const uint32_t ring = set.ring_tokens(), per_list = (spec.sink_tokens + ring + set.pool_slots(0, 1) + 63) / 64;
  const std::vector<uint32_t> pages = set.PagesOfLists(WholeModel(layout_), per_list);
  ASSERT_EQ(pages.size(), per_list * layout_.num_lists());
  for (uint32_t list = 0; list < layout_.num_lists(); ++list) {
    const int layer = static_cast<int>(list) / kHeads, head = static_cast<int>(list) % kHeads;
    for (const uint32_t position : {0u, 59u, 60u, ring - 1, ring + 7}) {
      const uint32_t local = spec.sink_tokens + position % ring;
      const uint32_t slot =
          pages[list * per_list + local / kSlotPageTokens] * kSlotPageTokens + local % kSlotPageTokens;
      EXPECT_EQ(set.PlaceOfRow(layer, head, position), slots.row(slot)) << list << ", " << position;
    }
  }
  EXPECT_EQ(std::set<uint32_t>(pages.begin(), pages.end()).size(), set.num_pages());
}

TEST_F(WorkingSetTest, RefusesIndicesOutsideTheGrantAndRowsOutsideTheRing) {
  const SelectionSpec spec{.budget_tokens = 8, .pool_factor = 1};
  SlotPool slots = Pool(100);
  auto set = WorkingSet::Create(slots, layout_, spec, 5000, 1000);
  ASSERT_TRUE(set.ok());
  const uint32_t outside = set->pool_slots(0, 0);
  const std::vector<std::byte> row(layout_.row_bytes());
  EXPECT_EQ(set->SetSelection(0, 0, 900, std::vector<uint32_t>{outside}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(set->CommitStreamed(0, 0, std::vector<uint32_t>{outside}, row.data()).code(),
            absl::StatusCode::kInvalidArgument);
  const uint32_t ring = set->ring_tokens();
  for (const wire::LocalRow& bad :
       {wire::LocalRow{outside, 899}, wire::LocalRow{0, 901}, wire::LocalRow{0, 900 - ring}}) {
    EXPECT_EQ(set->CommitLocal(0, 0, 900, std::vector<wire::LocalRow>{bad}).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(set->CommitLocal(0, 0, 900, std::vector<wire::LocalRow>{{0, 901 - ring}}).ok());
}

TEST_F(WorkingSetTest, ListsOfDifferentBudgetsBecomeSparseOneByOneAndStreamingOnesNeedNoPool) {
  const SelectionSpec spec{.predictor = Predictor::kExact,
                           .budget_tokens = 64,
                           .head_budgets = {0, 40, 300, 64, 0, 64},
                           .recent_tokens = 64,
                           .reuse_interval = 4,
                           .pool_factor = 1.5f};
  SlotPool slots = Pool(100);
  auto set = WorkingSet::Create(slots, layout_, spec, 5000, 50);
  ASSERT_TRUE(set.ok());
  // Sinks and a ring of 128 take 3 pages; pools of 0, 60, 450 and 96 slots begin in the third.
  EXPECT_EQ(slots.num_pages() - slots.free_pages(), 3u + 3 + 10 + 4 + 3 + 4);
  EXPECT_EQ(set->pool_slots(), 60u + 450 + 96 + 96);
  EXPECT_EQ(set->resident_rows(), 6u * (4 + 128) + 60 + 450 + 96 + 96);
  Load(*set, 0, 50, 50);
  set->FinishLoad(50);
  std::vector<std::vector<uint32_t>> selected(6);
  for (uint32_t p = 50; p < 600; ++p) {
    set->Advance(p);
    // Each list's newest selection: the first rows, of which all that lie in the pool already have their identity
    // index.
    for (size_t list = 0; list < 6; ++list) {
      if (!set->NeedsDelta(list, p)) continue;
      EXPECT_EQ(p % 4, 0u);
      EXPECT_GT(spec.head_budgets[list], 0u);
      std::vector<uint32_t> indices;
      for (uint32_t i = 0; i < 20; ++i) indices.push_back(i);
      ASSERT_TRUE(set->SetSelection(list / kHeads, list % kHeads, p, indices).ok());
      selected[list] = Range(4, 24);
    }
    Write(*set, p);
    const uint32_t window = WindowStart(spec, p, 50);
    for (size_t list = 0; list < 6; ++list) {
      std::vector<uint32_t> expected = Range(0, std::min(4u, p + 1));
      const bool everything = window - 4 <= spec.head_budgets[list];
      const std::vector<uint32_t> middle = everything ? Range(4, window) : selected[list];
      expected.insert(expected.end(), middle.begin(), middle.end());
      for (uint32_t q = std::max(window, 4u); q <= p; ++q) expected.push_back(q);
      ASSERT_EQ(Positions(slots, *set, list / kHeads, list % kHeads), expected) << "list " << list << " position " << p;
    }
  }
}

// Two query heads to a kv head, which share a list until the first selection.
TEST_F(WorkingSetTest, QueryHeadsReadTheRowsOfTheirOwnListsUntilTheNextSelection) {
  const SelectionSpec spec{.predictor = Predictor::kExact,
                           .list_per = ListPer::kQueryHead,
                           .budget_tokens = 20,
                           .head_budgets = {20, 0, 20, 300, 20, 20},
                           .recent_tokens = 64,
                           .reuse_interval = 4,
                           .pool_factor = 1};
  SlotPool slots = Pool(100);
  auto set = WorkingSet::Create(slots, layout_, spec, 5000, 50);
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(set->pool_slots(0, 0), 40u) << "both heads' budgets";
  EXPECT_EQ(set->pool_slots(0, 1), 0u);
  EXPECT_EQ(set->pool_slots(1, 0), 600u);
  Load(*set, 0, 50, 50);
  set->FinishLoad(50);
  std::mt19937 random(11);
  std::vector<std::array<std::vector<uint32_t>, 2>> selected(6);  // positions by list and query head
  uint32_t selections = 0;
  for (uint32_t p = 50; p < 400; ++p) {
    set->Advance(p);
    const uint32_t window = WindowStart(spec, p, 50);
    for (size_t list = 0; list < 6; ++list) {
      if (!set->NeedsDelta(list, p)) continue;
      const int layer = static_cast<int>(list) / kHeads, head = static_cast<int>(list) % kHeads;
      // Rows at pool indices that have nothing to do with their order.
      std::vector<uint32_t> indices = Range(0, set->pool_slots(layer, head));
      std::shuffle(indices.begin(), indices.end(), random);
      std::vector<QueryHeadMask> members;
      std::vector<float> rows;
      selected[list] = {};
      for (uint32_t q = 4; q < window && members.size() < indices.size(); ++q) {
        const QueryHeadMask mask = random() % 4;
        if (mask == 0) continue;
        members.push_back(mask);
        for (int i = 0; i < 2; ++i) {
          if (mask >> i & 1) selected[list][i].push_back(q);
        }
        const std::vector<float> row = Row(layer, head, q);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      indices.resize(members.size());
      ASSERT_TRUE(set->SetSelection(layer, head, p, indices, members).ok());
      ASSERT_TRUE(set->CommitStreamed(layer, head, indices, reinterpret_cast<const std::byte*>(rows.data())).ok());
      ++selections;
    }
    Write(*set, p);
    for (size_t list = 0; list < 6; ++list) {
      const int layer = static_cast<int>(list) / kHeads, head = static_cast<int>(list) % kHeads;
      const bool everything = window - 4 <= spec.head_budgets[list], streams = spec.head_budgets[list] == 0;
      ASSERT_EQ(set->NumSlotLists(layer, head), everything || streams ? 1 : 2) << "list " << list << " position " << p;
      for (int i = 0; i < set->NumSlotLists(layer, head); ++i) {
        std::vector<uint32_t> expected = Range(0, 4);
        const std::vector<uint32_t> middle = everything ? Range(4, window) : selected[list][i];
        expected.insert(expected.end(), middle.begin(), middle.end());
        for (uint32_t q = std::max(window, 4u); q <= p; ++q) expected.push_back(q);
        ASSERT_EQ(Positions(slots, *set, layer, head, i), expected) << "list " << list << " position " << p;
      }
    }
  }
  EXPECT_GT(selections, 4u * 60);
  // After another load the heads share their list again.
  Load(*set, 0, 50, 50);
  set->FinishLoad(50);
  set->Advance(50);
  Write(*set, 50);
  EXPECT_EQ(set->NumSlotLists(0, 0), 1);
  EXPECT_EQ(Positions(slots, *set, 0, 0), Range(0, 51));
}

TEST_F(WorkingSetTest, RefusesMasksThatNameNoHeadOrAnother) {
  SelectionSpec spec{.list_per = ListPer::kQueryHead, .budget_tokens = 8, .pool_factor = 1};
  SlotPool slots = Pool(100);
  auto set = WorkingSet::Create(slots, layout_, spec, 5000, 1000);
  ASSERT_TRUE(set.ok());
  spec.list_per = ListPer::kKvHead;
  auto shared = WorkingSet::Create(slots, layout_, spec, 5000, 1000);
  ASSERT_TRUE(shared.ok());
  using Masks = std::vector<QueryHeadMask>;
  const std::vector<uint32_t> indices = {3, 1};
  for (const Masks& bad : {Masks{}, Masks{1}, Masks{1, 2, 3}, Masks{1, 0}, Masks{4, 1}, Masks{0x8001, 1}}) {
    EXPECT_EQ(set->SetSelection(0, 0, 900, indices, bad).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(set->SetSelection(0, 0, 900, indices, Masks{1, 2}).ok());
  EXPECT_EQ(shared->SetSelection(0, 0, 900, indices, Masks{1, 1}).code(), absl::StatusCode::kInvalidArgument);
  // Nothing selected: sinks and recent window for all.
  EXPECT_TRUE(set->SetSelection(0, 0, 900, {}).ok());
  EXPECT_EQ(set->NumSlotLists(0, 0), 1);
}

// Three memories with a head each, of which the middle one needs the most pages.
TEST_F(WorkingSetTest, RowsLieInTheMemoryThatHasTheirHead) {
  const SelectionSpec spec{.budget_tokens = 300,
                           .head_budgets = {20, 300, 20, 20, 300, 20},
                           .sink_tokens = 4,
                           .recent_tokens = 64,
                           .pool_factor = 1};
  const uint32_t pages = WorkingSet::PagesNeeded(layout_, spec, 5000, kHeads);
  const uint32_t all = WorkingSet::PagesNeeded(layout_, spec, 5000);
  EXPECT_GT(pages, all / kHeads);
  EXPECT_LT(pages, all);
  const size_t part_bytes = size_t{pages} * kSlotPageTokens * layout_.row_bytes();
  std::array<std::vector<std::byte>, kHeads> memory;
  std::vector<SlotPool::Part> parts;
  for (std::vector<std::byte>& part : memory) {
    part.resize(part_bytes);
    parts.push_back({.rows = part.data()});
  }
  SlotPool slots = SlotPool::OnDevices(layout_.row_bytes(), pages, parts);
  const uint32_t prompt = 260;
  auto set = WorkingSet::Create(slots, layout_, spec, 5000, prompt);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(slots.free_pages(), 0u);
  Load(*set, 0, prompt, prompt);
  set->FinishLoad(prompt);
  set->Advance(prompt);
  Write(*set, prompt);
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(Positions(slots, *set, layer, 1), Range(0, prompt + 1)) << "its budget covers everything";
    for (int head = 0; head < kHeads; ++head) {
      const auto* place = static_cast<const std::byte*>(set->PlaceOfRow(layer, head, prompt));
      EXPECT_GE(place, memory[head].data());
      EXPECT_LT(place, memory[head].data() + part_bytes);
      EXPECT_EQ(std::memcmp(place, Row(layer, head, prompt).data(), layout_.row_bytes()), 0);
    }
  }
}

TEST_F(WorkingSetTest, TakesNothingWhenThePoolIsTooSmall) {
  const SelectionSpec spec{.budget_tokens = 64};
  SlotPool slots = Pool(WorkingSet::PagesNeeded(layout_, spec, 5000) - 1);
  EXPECT_EQ(WorkingSet::Create(slots, layout_, spec, 5000, 1000).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(slots.free_pages(), slots.num_pages());
}

}  // namespace
}  // namespace winnow
