#include "inference_rank/submit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/selection/selection_proto.h"
#include "inference_rank/working_set.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

TEST(MakeSequence, RefusesAWorkingSetThatCanNeverFitWithTheArithmetic) {
  SelectionSpec spec;
  spec.budget_tokens = 512;
  spec.budget_growth = 8;
  const KvLayout layout{4, 8, 2, 64, Dtype::kBf16};
  v1::DispatchRequest::Submit submit;
  for (int i = 0; i < 100; ++i) submit.add_prompt_token_ids(1);
  submit.mutable_stopping()->set_max_tokens(9900);
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
  EXPECT_THAT(std::string(refused.message()), HasSubstr("4096 pool slots (the guard may let budgets of 512 grow 8 x)"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(std::to_string(guarded - 1)));
}

}  // namespace
}  // namespace winnow
