#include "inference_rank/memory/resident_prefixes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace winnow {
namespace {

constexpr size_t kLists = 3;
constexpr size_t kRowBytes = 16;

using Tokens = std::vector<uint32_t>;

// `symbols` of a column each, which differ in the column's last token alone, and `rest` tokens more.
Tokens TokensOf(const std::vector<uint32_t>& symbols, uint32_t rest = 0) {
  Tokens tokens;
  for (const uint32_t symbol : symbols) {
    tokens.resize(tokens.size() + kSlotPageTokens, 7);
    tokens.back() = symbol;
  }
  tokens.resize(tokens.size() + rest, 7);
  return tokens;
}

ResidentPrefixes::Key KeyOf(const Tokens& tokens, std::string salt = "one", uint64_t owner = 1) {
  return {
      .salt = std::move(salt), .tokens = tokens, .shared_tokens = static_cast<uint32_t>(tokens.size()), .owner = owner};
}

class ResidentPrefixesTest : public testing::Test {
 protected:
  // Inserts with new pages, of which those that were not wanted go back.
  ResidentPrefixes::Lease Insert(const ResidentPrefixes::Key& key) {
    const uint32_t columns = static_cast<uint32_t>(key.tokens.size() / kSlotPageTokens);
    std::vector<uint32_t> unused = slots_.Allocate(columns * kLists).value();
    return InsertOver(key, unused);
  }
  ResidentPrefixes::Lease InsertOver(const ResidentPrefixes::Key& key, std::vector<uint32_t> unused) {
    ResidentPrefixes::Lease lease = prefixes_.Insert(key, [&](size_t, uint32_t) {
      const uint32_t page = unused.back();
      unused.pop_back();
      return page;
    });
    slots_.Free(unused);
    return lease;
  }

  static constexpr uint32_t kPages = 300;
  SlotPool slots_ = SlotPool::Create(kRowBytes, kPages).value();
  ResidentPrefixes prefixes_{slots_, kLists};
};

TEST_F(ResidentPrefixesTest, WholeColumnsAreFoundByTheirTokensAndNothingElse) {
  const Tokens tokens = TokensOf({1, 2, 3}, 63);
  { const auto lease = Insert(KeyOf(tokens)); }
  EXPECT_EQ(prefixes_.num_columns(), 3u) << "the rest is no column";
  EXPECT_EQ(prefixes_.Find(KeyOf(TokensOf({1, 2, 3}))).positions(), 3u * kSlotPageTokens);
  EXPECT_EQ(prefixes_.Find(KeyOf(TokensOf({1, 2, 4}))).num_columns(), 2u);
  EXPECT_EQ(prefixes_.Find(KeyOf(TokensOf({1, 2}, 63))).num_columns(), 2u);
  EXPECT_EQ(prefixes_.Find(KeyOf(TokensOf({2, 2, 3}))).num_columns(), 0u);
  EXPECT_EQ(prefixes_.Find(KeyOf(tokens, "another tenant")).num_columns(), 0u);
  EXPECT_EQ(prefixes_.Find(KeyOf(tokens, "")).num_columns(), 0u);
}

TEST_F(ResidentPrefixesTest, WhatFollowsThePromptIsTheSequencesOwn) {
  const Tokens tokens = TokensOf({1, 2, 3, 4});
  ResidentPrefixes::Key key = KeyOf(tokens);
  key.shared_tokens = 2 * kSlotPageTokens + 10;  // the third column has rows of the answer, too
  key.owner = 5;
  { const auto lease = Insert(key); }
  EXPECT_EQ(prefixes_.Find(key).num_columns(), 4u);
  EXPECT_EQ(prefixes_.Find(KeyOf(tokens)).num_columns(), 2u) << "a prompt with the same tokens";
  key.owner = 6;
  EXPECT_EQ(prefixes_.Find(key).num_columns(), 2u);
}

TEST_F(ResidentPrefixesTest, IdleColumnsMakeRoomAndLeasedOnesStay) {
  auto first = Insert(KeyOf(TokensOf({1, 2})));
  { const auto second = Insert(KeyOf(TokensOf({1, 3, 4}))); }
  EXPECT_EQ(prefixes_.idle_pages(), 2 * kLists);
  EXPECT_EQ(slots_.free_pages(), kPages - 4 * kLists);
  prefixes_.MakeRoom(kPages - 3 * kLists);  // one column goes: the last of its chain
  EXPECT_EQ(prefixes_.Find(KeyOf(TokensOf({1, 3, 4}))).num_columns(), 2u);
  prefixes_.MakeRoom(kPages);
  EXPECT_EQ(prefixes_.evicted_columns(), 2u);
  EXPECT_EQ(prefixes_.num_columns(), 2u) << "those that are leased";
  first = {};
  prefixes_.MakeRoom(kPages);
  EXPECT_EQ(slots_.free_pages(), kPages);
}

ResidentPrefixes::Key WithIndex(ResidentPrefixes::Key key, uint32_t index) {
  key.index = index;
  return key;
}

TEST_F(ResidentPrefixesTest, AColumnHasTheIndexOfOneKindAsLongAsSomebodyHoldsIt) {
  const Tokens tokens = TokensOf({1, 2, 3});
  const auto key = [&](uint32_t index) { return WithIndex(KeyOf(tokens), index); };
  auto first = Insert(key(1));
  first.SetIndexed();
  EXPECT_EQ(prefixes_.Find(key(1)).indexed_positions(), 192u);
  EXPECT_EQ(prefixes_.Find(key(2)).num_columns(), 0u);
  EXPECT_EQ(prefixes_.LeasedPages(key(2)), 0u);
  auto without = prefixes_.Find(key(0));
  EXPECT_EQ(without.num_columns(), 3u) << "who reads no index has any";
  without.SetIndexed();

  // Another kind has columns of its own, which its like share.
  auto second = Insert(key(2));
  EXPECT_EQ(second.num_columns(), 3u);
  EXPECT_EQ(prefixes_.num_columns(), 6u);
  EXPECT_NE(second.pages().front().front(), first.pages().front().front());
  EXPECT_EQ(second.indexed_positions(), 0u);
  const auto like = prefixes_.Find(key(2));
  EXPECT_EQ(like.pages().back().back(), second.pages().back().back());
  EXPECT_EQ(prefixes_.LeasedPages(key(2)), 3 * kLists);
  EXPECT_EQ(first.indexed_positions(), 192u);

  // A third kind takes over what nobody reads the index of any longer, whoever has the rows.
  first = {};
  EXPECT_EQ(prefixes_.Find(key(1)).indexed_positions(), 192u) << "it is there yet";
  auto third = prefixes_.Find(key(3));
  EXPECT_EQ(third.num_columns(), 3u);
  EXPECT_EQ(third.pages().front().front(), without.pages().front().front());
  EXPECT_EQ(third.indexed_positions(), 0u);
  EXPECT_EQ(prefixes_.Find(key(1)).num_columns(), 0u);
  third = {};
  EXPECT_EQ(prefixes_.Find(key(1)).indexed_positions(), 0u) << "what lay there has been written over";
}

// Two prompts that part: each column before is of the kind of all that hold it.
TEST_F(ResidentPrefixesTest, ColumnsOfAnotherKindBeginWhereOnesAreHeld) {
  auto first = Insert(WithIndex(KeyOf(TokensOf({1})), 1));
  { const auto longer = Insert(KeyOf(TokensOf({1, 2, 3}))); }
  EXPECT_EQ(prefixes_.Find(WithIndex(KeyOf(TokensOf({1, 2, 3})), 1)).num_columns(), 3u);
  EXPECT_EQ(prefixes_.Find(WithIndex(KeyOf(TokensOf({1, 2, 3})), 2)).num_columns(), 0u);
  auto other = Insert(WithIndex(KeyOf(TokensOf({1, 2, 3})), 2));
  EXPECT_EQ(other.num_columns(), 3u);
  EXPECT_EQ(prefixes_.num_columns(), 6u);
  first = {};
  other = {};
  prefixes_.MakeRoom(kPages);
  EXPECT_EQ(slots_.free_pages(), kPages);
}

// What is inserted is indexed where its pages are, and what is found already is as it was.
TEST_F(ResidentPrefixesTest, InsertedColumnsAreIndexedAsTheirPagesAre) {
  auto first = Insert(WithIndex(KeyOf(TokensOf({1})), 1));
  ResidentPrefixes::Key key = WithIndex(KeyOf(TokensOf({2, 3})), 1);
  key.is_indexed = true;
  EXPECT_EQ(Insert(key).indexed_positions(), 128u);
  const Tokens longer = TokensOf({1, 3});
  key.tokens = longer;
  EXPECT_EQ(Insert(key).indexed_positions(), 0u) << "the first column's pages are another one's";
  first.SetIndexed();
  EXPECT_EQ(Insert(key).indexed_positions(), 128u);
}

// What is kept, by the tokens that lead there, and when it became idle.
struct Oracle {
  struct Column {
    std::vector<uint32_t> pages;
    uint64_t idle_since = 0;
  };
  using Path = std::pair<std::string, std::vector<uint32_t>>;  // salt and symbols
  std::map<Path, Column> columns;
  std::vector<Path> leases;
  uint64_t now = 0;

  static Path Prefix(const Path& path, size_t depth) {
    return {path.first, {path.second.begin(), path.second.begin() + static_cast<ptrdiff_t>(depth)}};
  }
  bool IsLeased(const Path& column) const {
    return std::any_of(leases.begin(), leases.end(), [&](const Path& lease) {
      return lease.second.size() >= column.second.size() && Prefix(lease, column.second.size()) == column;
    });
  }
  size_t Longest(const Path& path) const {
    size_t depth = 0;
    while (depth < path.second.size() && columns.contains(Prefix(path, depth + 1))) ++depth;
    return depth;
  }
  void Release(size_t lease) {
    const Path path = leases[lease];
    leases.erase(leases.begin() + static_cast<ptrdiff_t>(lease));
    for (size_t depth = path.second.size(); depth > 0; --depth) {
      if (const Path column = Prefix(path, depth); !IsLeased(column)) columns[column].idle_since = ++now;
    }
  }
  size_t NumIdle() const {
    return std::count_if(columns.begin(), columns.end(), [&](const auto& entry) { return !IsLeased(entry.first); });
  }
  bool EvictOldest() {
    auto oldest = columns.end();
    for (auto entry = columns.begin(); entry != columns.end(); ++entry) {
      if (IsLeased(entry->first)) continue;
      if (oldest == columns.end() || entry->second.idle_since < oldest->second.idle_since) oldest = entry;
    }
    if (oldest == columns.end()) return false;
    columns.erase(oldest);
    return true;
  }
};

TEST_F(ResidentPrefixesTest, AnyPromptsThatShareAndGiveWayAreThoseOfBruteForce) {
  std::mt19937 random(11);
  Oracle oracle;
  std::vector<ResidentPrefixes::Lease> leases;
  std::vector<std::vector<uint32_t>> others;  // pages that sequences have beside columns
  uint32_t other_pages = 0;
  for (int step = 0; step < 10'000; ++step) {
    Oracle::Path path{random() % 4 == 0 ? "one" : "other", {}};
    for (size_t depth = random() % 7; depth > 0; --depth) path.second.push_back(random() % 3);
    const Tokens tokens = TokensOf(path.second, random() % kSlotPageTokens);
    switch (random() % 6) {
      case 0:
      case 1: {  // a sequence comes: it leases what is there, takes pages for the rest, and keeps all
        ResidentPrefixes::Lease found = prefixes_.Find(KeyOf(tokens, path.first));
        const size_t depth = oracle.Longest(path);
        ASSERT_EQ(found.num_columns(), depth) << "step " << step;
        if (depth == path.second.size() && depth == 0) break;
        oracle.leases.push_back(Oracle::Prefix(path, depth));
        const auto needed = static_cast<uint32_t>((path.second.size() - depth) * kLists);
        prefixes_.MakeRoom(needed);
        while (kPages - oracle.columns.size() * kLists - other_pages < needed && oracle.EvictOldest()) {
        }
        if (slots_.free_pages() < needed) {
          found = {};
          oracle.Release(oracle.leases.size() - 1);
          break;
        }
        std::vector<uint32_t> pages = slots_.Allocate(needed).value();
        std::vector<uint32_t> taken(pages.rbegin(), pages.rend());  // in the order in which they are asked for
        for (size_t i = depth; i < path.second.size(); ++i) {
          const auto first = taken.begin() + static_cast<ptrdiff_t>((i - depth) * kLists);
          oracle.columns[Oracle::Prefix(path, i + 1)].pages.assign(first, first + kLists);
        }
        leases.push_back(InsertOver(KeyOf(tokens, path.first), std::move(pages)));
        oracle.leases.push_back(path);
        found = {};
        oracle.Release(oracle.leases.size() - 2);
        break;
      }
      case 2:
      case 3: {
        if (leases.empty()) break;
        const size_t lease = random() % leases.size();
        leases.erase(leases.begin() + static_cast<ptrdiff_t>(lease));
        oracle.Release(lease);
        break;
      }
      case 4: {
        const uint32_t needed = random() % 40;
        prefixes_.MakeRoom(needed);
        while (kPages - oracle.columns.size() * kLists - other_pages < needed && oracle.EvictOldest()) {
        }
        if (slots_.free_pages() < needed) break;
        others.push_back(slots_.Allocate(needed).value());
        other_pages += needed;
        break;
      }
      default: {
        if (others.empty()) break;
        std::swap(others[random() % others.size()], others.back());
        slots_.Free(others.back());
        other_pages -= static_cast<uint32_t>(others.back().size());
        others.pop_back();
      }
    }
    ASSERT_EQ(prefixes_.num_columns(), oracle.columns.size()) << "step " << step;
    ASSERT_EQ(prefixes_.idle_pages(), oracle.NumIdle() * kLists) << "step " << step;
    ASSERT_EQ(slots_.free_pages() + prefixes_.num_pages() + other_pages, kPages);
    if (leases.empty()) continue;
    const size_t checked = random() % leases.size();
    const auto pages = leases[checked].pages();
    ASSERT_EQ(pages.size(), oracle.leases[checked].second.size());
    for (size_t i = 0; i < pages.size(); ++i) {
      const std::vector<uint32_t>& expected = oracle.columns.at(Oracle::Prefix(oracle.leases[checked], i + 1)).pages;
      ASSERT_TRUE(std::equal(pages[i].begin(), pages[i].end(), expected.begin(), expected.end())) << "step " << step;
    }
  }
  EXPECT_GT(prefixes_.evicted_columns(), 1000u);
  leases.clear();
  for (const std::vector<uint32_t>& pages : others) slots_.Free(pages);
}

// Columns of pages in either memory of a GPU whose slots go on in the host's.
TEST(ResidentPrefixesOfTwoMemories, RoomIsMadeWhereItIsWanted) {
  std::vector<std::byte> memory(12 * kLists * kSlotPageTokens * kRowBytes);
  SlotPool slots = SlotPool::OnDevices(kRowBytes, 12 * kLists, {{.rows = memory.data()}}, 6 * kLists);
  ResidentPrefixes prefixes(slots, kLists);
  const auto insert = [&](const Tokens& tokens, SlotPlace place) {
    std::vector<uint32_t> pages =
        slots.Allocate(static_cast<uint32_t>(tokens.size() / kSlotPageTokens * kLists), place).value();
    size_t next = 0;
    return prefixes.Insert(KeyOf(tokens), [&](size_t, uint32_t) { return pages[next++]; });
  };
  const Tokens in_host = TokensOf({1, 2}), in_front = TokensOf({3, 4}), later = TokensOf({5});
  {
    const auto first = insert(in_host, SlotPlace::kHostBehindGpu), second = insert(in_front, SlotPlace::kFront);
    EXPECT_TRUE(first.has_host_pages());
    EXPECT_FALSE(second.has_host_pages());
    EXPECT_EQ(prefixes.idle_pages(), 0u);
  }
  { const auto third = insert(later, SlotPlace::kFront); }
  EXPECT_EQ(prefixes.idle_pages(SlotPlace::kFront), 3 * kLists);
  EXPECT_EQ(prefixes.idle_pages(SlotPlace::kHostBehindGpu), 2 * kLists);
  prefixes.MakeRoom(5 * kLists, SlotPlace::kFront);
  EXPECT_EQ(slots.free_pages(SlotPlace::kFront), 5 * kLists);
  EXPECT_EQ(prefixes.Find(KeyOf(in_host)).num_columns(), 2u) << "older, but not there";
  EXPECT_EQ(prefixes.Find(KeyOf(in_front)).num_columns(), 0u);
  EXPECT_EQ(prefixes.Find(KeyOf(later)).num_columns(), 1u);
  prefixes.MakeRoom(6 * kLists, SlotPlace::kHostBehindGpu);
  EXPECT_EQ(slots.free_pages(SlotPlace::kHostBehindGpu), 6 * kLists);
  EXPECT_EQ(prefixes.idle_pages(), kLists);
}

// A column cannot go before those behind it, wherever they lie.
TEST(ResidentPrefixesOfTwoMemories, WhatLiesBehindInTheOtherMemoryGoesFirst) {
  std::vector<std::byte> memory(4 * kLists * kSlotPageTokens * kRowBytes);
  SlotPool slots = SlotPool::OnDevices(kRowBytes, 4 * kLists, {{.rows = memory.data()}}, 2 * kLists);
  ResidentPrefixes prefixes(slots, kLists);
  const std::vector<uint32_t> front = slots.Allocate(kLists, SlotPlace::kFront).value(),
                              host = slots.Allocate(kLists, SlotPlace::kHostBehindGpu).value();
  {
    const auto lease = prefixes.Insert(
        KeyOf(TokensOf({1, 2})), [&](size_t list, uint32_t column) { return column == 0 ? front[list] : host[list]; });
  }
  prefixes.MakeRoom(2 * kLists, SlotPlace::kFront);
  EXPECT_EQ(prefixes.num_columns(), 0u);
  EXPECT_EQ(slots.free_pages(), 4 * kLists);
}

}  // namespace
}  // namespace winnow
