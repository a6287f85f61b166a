#include "router/dispatch/token_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace winnow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::DispatchResponse::TokenDelta Delta(uint32_t first_index, const std::vector<uint32_t>& ids) {
  v1::DispatchResponse::TokenDelta delta;
  delta.set_first_index(first_index);
  for (const uint32_t id : ids) delta.add_tokens()->set_id(id);
  return delta;
}

TEST(TokenJournalTest, PassesOnWhatIsNew) {
  TokenJournal journal;
  auto accepted = journal.Accept(Delta(0, {5, 6}));
  ASSERT_TRUE(accepted.ok());
  EXPECT_EQ(accepted->first_index, 0u);
  EXPECT_EQ(accepted->tokens.size(), 2u);

  accepted = journal.Accept(Delta(1, {6, 7}));
  ASSERT_TRUE(accepted.ok());
  EXPECT_EQ(accepted->first_index, 2u);
  ASSERT_EQ(accepted->tokens.size(), 1u);
  EXPECT_EQ(accepted->tokens[0].id(), 7u);
  EXPECT_EQ(accepted->replayed, 1u);
  EXPECT_EQ(accepted->mismatched, 0u);

  accepted = journal.Accept(Delta(0, {5, 9, 7}));
  ASSERT_TRUE(accepted.ok());
  EXPECT_THAT(accepted->tokens, IsEmpty());
  EXPECT_EQ(accepted->replayed, 3u);
  EXPECT_EQ(accepted->mismatched, 1u);
  EXPECT_THAT(journal.ids(), ElementsAre(5, 6, 7));
}

TEST(TokenJournalTest, AGapIsDataLoss) {
  TokenJournal journal;
  EXPECT_EQ(journal.Accept(Delta(1, {5})).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(journal.ids(), IsEmpty());
}

}  // namespace
}  // namespace winnow
