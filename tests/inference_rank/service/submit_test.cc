#include "inference_rank/service/submit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/selection/selection_proto.h"
#include "inference_rank/memory/working_set.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

class SubmitTest : public ::testing::Test {
 protected:
  SubmitTest() {
    limits_ = {.vocab_size = 100,
               .max_context_tokens = 10000,
               .max_budget_tokens = 4096,
               .layout = {2, 4, 2, 16, Dtype::kBf16},
               .slot_pages = 0};
    submit_.mutable_prompt_token_ids()->Add(7);
    submit_.mutable_stopping()->set_max_tokens(5000);
    submit_.add_cache_ranks()->set_rank("cache-0");
  }
  absl::Status Make(const SelectionSpec& spec) {
    *submit_.mutable_selection() = ToProto(spec);
    return MakeSequence(submit_, limits_).status();
  }
  v1::DispatchRequest::Submit submit_;
  SubmitLimits limits_;
};

TEST_F(SubmitTest, RefusesAWorkingSetThatCanNeverFit) {
  const SelectionSpec spec{.budget_tokens = 1000};
  const uint32_t pages = WorkingSet::PagesNeeded(limits_.layout, spec, 5001);
  limits_.slot_pages = pages;
  EXPECT_TRUE(Make(spec).ok());
  limits_.slot_pages = pages - 1;
  const absl::Status refused = Make(spec);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(std::to_string(pages) + " slot pages"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("has " + std::to_string(pages - 1)));
  SelectionSpec streaming = spec;
  streaming.head_budgets = {1000, 0, 1000, 1000};
  EXPECT_TRUE(Make(streaming).ok()) << "a streaming head takes no pool";
}

TEST_F(SubmitTest, CutsTheSequenceForItsCacheRanks) {
  limits_.slot_pages = 100000;
  *submit_.mutable_selection() = ToProto(SelectionSpec{.budget_tokens = 64});
  submit_.add_cache_ranks()->set_rank("cache-1");
  const auto sequence = MakeSequence(submit_, limits_);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  ASSERT_EQ((*sequence)->places.size(), 2u);
  EXPECT_EQ((*sequence)->places[1].cache_rank.rank(), "cache-1");
  EXPECT_EQ((*sequence)->places[1].shard, (KvShard{1, 1, 0, 2}));

  submit_.add_cache_ranks()->set_rank("cache-0");
  EXPECT_THAT(std::string(MakeSequence(submit_, limits_).status().message()),
              HasSubstr("two shards on cache rank cache-0"));
  submit_.mutable_cache_ranks(2)->set_rank("cache-2");
  for (const char* rank : {"cache-3", "cache-4"}) submit_.add_cache_ranks()->set_rank(rank);
  EXPECT_THAT(std::string(MakeSequence(submit_, limits_).status().message()),
              HasSubstr("5 shards of 2 kv heads x 2 layers: at most 4"));
  submit_.clear_cache_ranks();
  EXPECT_THAT(std::string(MakeSequence(submit_, limits_).status().message()), HasSubstr("cache_ranks is empty"));
}

TEST_F(SubmitTest, FollowsWhatStepsAttendToWhereThatCanBeTold) {
  limits_.slot_pages = 100000;
  const SelectionSpec spec{.budget_tokens = 64};
  *submit_.mutable_selection() = ToProto(spec);
  EXPECT_FALSE((*MakeSequence(submit_, limits_))->trace.has_value());
  submit_.set_trace_parts(16);
  EXPECT_TRUE((*MakeSequence(submit_, limits_))->trace.has_value());
  submit_.set_trace_parts(kMaxTraceParts + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(Make(spec)));

  submit_.set_trace_parts(16);
  limits_.selects_in_place = [](const SelectionSpec&) { return true; };
  const absl::Status in_place = Make(spec);
  EXPECT_TRUE(absl::IsUnimplemented(in_place));
  EXPECT_THAT(std::string(in_place.message()), HasSubstr("winnow.trace"));
  limits_.selects_in_place = [](const SelectionSpec&) { return false; };
  EXPECT_TRUE(Make(spec).ok());
}

TEST_F(SubmitTest, RefusesBudgetsOfAnotherShape) {
  limits_.slot_pages = 100000;
  SelectionSpec spec{.budget_tokens = 64, .head_budgets = {64, 64, 64}};
  EXPECT_THAT(std::string(Make(spec).message()), HasSubstr("head_budgets has 3 budgets, the model 2 layers of 2 kv"));
  spec.head_budgets.push_back(0);
  EXPECT_TRUE(Make(spec).ok());
}

TEST_F(SubmitTest, RefusesListsPerQueryHeadOfGroupsThatNoMaskNames) {
  limits_.slot_pages = 100000;
  SelectionSpec spec{.predictor = Predictor::kExact, .list_per = ListPer::kQueryHead, .budget_tokens = 64};
  limits_.layout.num_query_heads = 16 * limits_.layout.num_kv_heads;
  EXPECT_TRUE(Make(spec).ok());
  limits_.layout.num_query_heads = 17 * limits_.layout.num_kv_heads;
  const absl::Status refused = Make(spec);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("selection.list_per"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 16 query heads per kv head; the model has 17"));
  spec.list_per = ListPer::kKvHead;
  EXPECT_TRUE(Make(spec).ok());
}

TEST_F(SubmitTest, RefusesCorrectionOfListsPerQueryHead) {
  limits_.slot_pages = 100000;
  SelectionSpec spec{.predictor = Predictor::kExact, .list_per = ListPer::kQueryHead, .budget_tokens = 64};
  spec.correction = Correction::kRemote;
  EXPECT_TRUE(absl::IsUnimplemented(Make(spec)));
  EXPECT_THAT(std::string(Make(spec).message()), HasSubstr("correction of lists per query head"));
  spec.correction = Correction::kNone;
  spec.min_captured_mass = 0.9f;
  EXPECT_TRUE(absl::IsUnimplemented(Make(spec)));
}

TEST(MakeSequence, RefusesAWorkingSetThatCanNeverFitWithTheArithmetic) {
  SelectionSpec spec;
  spec.budget_tokens = 512;
  spec.budget_growth = 8;
  const KvLayout layout{4, 8, 2, 64, Dtype::kBf16};
  v1::DispatchRequest::Submit submit;
  for (int i = 0; i < 100; ++i) submit.add_prompt_token_ids(1);
  submit.mutable_stopping()->set_max_tokens(9900);
  submit.add_cache_ranks()->set_rank("cache-0");
  const auto make = [&](float min_captured_mass, uint32_t slot_pages) {
    spec.min_captured_mass = min_captured_mass;
    *submit.mutable_selection() = ToProto(spec);
    return MakeSequence(submit, {.vocab_size = 10,
                                 .max_context_tokens = 10'000,
                                 .max_budget_tokens = 512,
                                 .lookahead = 1,
                                 .layout = layout,
                                 .slot_pages = slot_pages})
        .status();
  };
  spec.min_captured_mass = 0;
  const uint32_t plain = WorkingSet::PagesNeeded(layout, spec, 10'000);
  spec.min_captured_mass = 0.9f;
  const uint32_t guarded = WorkingSet::PagesNeeded(layout, spec, 10'000);
  EXPECT_GT(guarded, 3 * plain) << "a pool of 2 x against one of 8 x";
  EXPECT_TRUE(make(0, plain).ok());
  EXPECT_TRUE(make(0.9f, guarded).ok());
  const absl::Status refused = make(0.9f, guarded - 1);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("32768 pool slots (the guard may let budgets of 512 grow 8 x) over all"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(std::to_string(guarded - 1)));
}

}  // namespace
}  // namespace winnow
