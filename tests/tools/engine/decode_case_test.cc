#include "tools/engine/decode_case.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/model/synthetic_models.h"
#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

using testing::HasSubstr;

class DecodeCaseTest : public testing::Test {
 protected:
  DecodeCase Made(const std::string& selection, KvPlacement placement) const {
    return CaseOf(selection, placement, 2048, model_).value();
  }
  const ModelConfig model_ = *SyntheticModelConfig("synthetic:qwen3-14b");
};

TEST_F(DecodeCaseTest, PlacementsHaveNames) {
  for (const KvPlacement placement : {KvPlacement::kDense, KvPlacement::kFixed, KvPlacement::kColocated,
                                      KvPlacement::kColocatedDram, KvPlacement::kDisaggregated}) {
    EXPECT_EQ(*ParsePlacement(PlacementName(placement)), placement);
  }
  EXPECT_THAT(ParsePlacement("sparse"), FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("colocated-dram")));
}

TEST_F(DecodeCaseTest, EveryPublishedSystemRunsColocatedWithTheSameBudget) {
  for (const char* preset : {"quest", "sparseserve", "hisparse", "lserve", "psa", "async-token", "winnow"}) {
    const DecodeCase made = Made(preset, KvPlacement::kColocated);
    EXPECT_EQ(made.spec.budget_tokens, 2048u) << preset;
    EXPECT_EQ(made.rows(), RowTier::kInPlace) << preset;
  }
  EXPECT_EQ(Made("dense", KvPlacement::kColocated).placement, KvPlacement::kDense);
}

TEST_F(DecodeCaseTest, HalfOfTheHeadsOfLserveStream) {
  const std::vector<uint32_t> budgets = Made("lserve", KvPlacement::kColocated).spec.head_budgets;
  ASSERT_EQ(budgets.size(), model_.kv_layout(Dtype::kBf16).num_lists());
  EXPECT_EQ(std::count(budgets.begin(), budgets.end(), 0u), static_cast<int64_t>(budgets.size() / 2));
}

TEST_F(DecodeCaseTest, KeysHaveACopyWhereRowsAreInDram) {
  EXPECT_EQ(Made("hisparse", KvPlacement::kColocated).spec.key_copy, KeyCopy::kNone);
  EXPECT_EQ(Made("hisparse", KvPlacement::kColocatedDram).spec.key_copy, KeyCopy::kInt8);
  EXPECT_EQ(Made("sparseserve", KvPlacement::kColocatedDram).spec.key_copy, KeyCopy::kNone);  // scores pages alone
}

TEST_F(DecodeCaseTest, RowsOfFewerBitsAreForWhatNeitherSendsNorReadsThem) {
  const DecodeCase quest = CaseOf("quest", KvPlacement::kColocated, 2048, model_, Dtype::kF8).value();
  EXPECT_EQ(quest.kv, Dtype::kF8);
  EXPECT_EQ(CaseOf("hisparse", KvPlacement::kColocated, 2048, model_, Dtype::kF8)->spec.key_copy, KeyCopy::kInt8);
  EXPECT_THAT(CaseOf("psa", KvPlacement::kColocated, 2048, model_, Dtype::kF8),
              FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr("rows of bf16")));
  EXPECT_THAT(CaseOf("quest", KvPlacement::kDisaggregated, 2048, model_, Dtype::kF8),
              FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr("bf16")));
}

TEST_F(DecodeCaseTest, KeysOfInt8AreScoredInTheirRows) {
  for (const char* preset : {"winnow", "hisparse", "quest", "sparseserve"}) {
    const DecodeCase made = CaseOf(preset, KvPlacement::kColocated, 2048, model_, Dtype::kI8).value();
    EXPECT_EQ(made.spec.key_copy, KeyCopy::kNone) << preset;
  }
  EXPECT_THAT(CaseOf("psa", KvPlacement::kColocated, 2048, model_, Dtype::kI8),
              FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr("rows of bf16")));
}

TEST_F(DecodeCaseTest, SaysWhatIsNotBuilt) {
  EXPECT_THAT(CaseOf("lserve", KvPlacement::kDisaggregated, 2048, model_),
              FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr("query-head")));
}

TEST_F(DecodeCaseTest, SlotsHoldEverythingWhereNothingIsSent) {
  DecodeCase in_place = Made("lserve", KvPlacement::kColocated);
  in_place.batch = 3;
  const DecodeSlotShape shape = in_place.SlotShape(model_, 32768);
  EXPECT_TRUE(shape.holds_everything());
  EXPECT_FALSE(shape.is_dense());
  EXPECT_EQ(shape.num_selections(), 3u * 40 * 40);
  EXPECT_EQ(shape.max_list_rows(), 128u + 2048 + 256 + 34);
  const DecodeSlotShape pool = Made("winnow", KvPlacement::kDisaggregated).SlotShape(model_, 32768);
  EXPECT_FALSE(pool.holds_everything());
  EXPECT_EQ(pool.pool_slots, 8192u);
}

}  // namespace
}  // namespace winnow
