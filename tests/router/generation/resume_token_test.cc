#include "router/generation/resume_token.h"

#include <gtest/gtest.h>

#include "router/generation/request_error.h"

namespace winnow {
namespace {

using std::chrono::seconds;
using SystemClock = std::chrono::system_clock;

const SystemClock::time_point kNow = SystemClock::time_point(seconds(1'000'000));

GenerationInput Input() {
  GenerationInput input;
  input.prompt_token_ids = {1, 2, 3};
  input.caller.tenant = "tenant";
  input.n = 2;
  input.sampling.set_temperature(0.5f);
  input.sampling.set_seed(42);
  input.max_tokens = 100;
  input.stop = {"end"};
  input.deadline = kNow + seconds(60);
  return input;
}

TEST(ResumeToken, SaysWhatAnyRouterNeeds) {
  v1::ResumeToken made = NewResumeToken("cluster", Input());
  made.set_inference_rank("inference-0");
  made.set_incarnation(7);
  const std::string text = EncodeResumeToken(made);
  EXPECT_LT(text.size(), 200u);
  const absl::StatusOr<v1::ResumeToken> read = DecodeResumeToken(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->seed(), 42u);
  EXPECT_EQ(read->inference_rank(), "inference-0");
  EXPECT_EQ(read->incarnation(), 7u);
  EXPECT_TRUE(CheckResumeToken(*read, "cluster", "tenant", kNow).ok());
  EXPECT_TRUE(CheckResumesRequest(*read, Input()).ok());
  EXPECT_EQ(ResumeKeyOf(*read, 1), ResumeKeyOf(made, 1));
  EXPECT_NE(ResumeKeyOf(*read, 0), ResumeKeyOf(*read, 1));
}

TEST(ResumeToken, OfTheSameRequestAreDifferent) {
  EXPECT_NE(ResumeKeyOf(NewResumeToken("cluster", Input()), 0), ResumeKeyOf(NewResumeToken("cluster", Input()), 0));
}

TEST(ResumeToken, IsRefusedWhenAnyCharacterIsLostOrChanged) {
  const std::string text = EncodeResumeToken(NewResumeToken("cluster", Input()));
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = changed[i] == 'A' ? 'B' : 'A';
    for (const std::string& wrong : {changed, text.substr(0, i)}) {
      const absl::Status status = DecodeResumeToken(wrong).status();
      ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
      EXPECT_EQ(FactsOf(status).code, "resume_token_malformed");
      EXPECT_EQ(FactsOf(status).field, "resume_token");
    }
  }
}

TEST(ResumeToken, IsRefusedWithMoreOutputsThanARequestMayHave) {
  v1::ResumeToken token = NewResumeToken("cluster", Input());
  token.set_outputs(1u << 31);
  EXPECT_EQ(FactsOf(DecodeResumeToken(EncodeResumeToken(token)).status()).code, "resume_token_malformed");
}

TEST(ResumeToken, IsRefusedByNameWhereItHasNoMeaning) {
  const v1::ResumeToken token = NewResumeToken("cluster", Input());
  const absl::Status other_cluster = CheckResumeToken(token, "other", "tenant", kNow);
  EXPECT_EQ(other_cluster.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FactsOf(other_cluster).code, "resume_token_of_another_cluster");
  const absl::Status other_tenant = CheckResumeToken(token, "cluster", "other", kNow);
  EXPECT_EQ(other_tenant.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(FactsOf(other_tenant).code, "resume_token_of_another_key");
  EXPECT_TRUE(CheckResumeToken(token, "cluster", "tenant", kNow + seconds(60)).ok());
  const absl::Status expired = CheckResumeToken(token, "cluster", "tenant", kNow + seconds(61));
  EXPECT_EQ(expired.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FactsOf(expired).code, "resume_token_expired");
}

TEST(ResumeToken, ResumesTheRequestThatItWasMadeForAndNoOther) {
  const v1::ResumeToken token = NewResumeToken("cluster", Input());
  GenerationInput same = Input();
  same.sampling.clear_seed();  // drawn the first time
  same.max_tokens = 50;        // by the ranks that are there now
  same.deadline = kNow + seconds(5);
  EXPECT_TRUE(CheckResumesRequest(token, same).ok());
  const std::vector<std::function<void(GenerationInput*)>> changes = {
      [](GenerationInput* input) { input->prompt_token_ids.push_back(4); },
      [](GenerationInput* input) { input->n = 1; },
      [](GenerationInput* input) { input->sampling.set_seed(43); },
      [](GenerationInput* input) { input->sampling.set_temperature(0.6f); },
      [](GenerationInput* input) {
        input->stop = {"en", "d"};
      },
      [](GenerationInput* input) { input->stop_token_ids = {1}; },
      [](GenerationInput* input) { input->ignore_eos = true; },
      [](GenerationInput* input) { input->top_logprobs = 0; },
      [](GenerationInput* input) { input->selection.budget_tokens += 16; },
      [](GenerationInput* input) { input->decoding.skip_special_tokens = false; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    GenerationInput other = Input();
    changes[i](&other);
    EXPECT_EQ(FactsOf(CheckResumesRequest(token, other)).code, "resume_token_mismatch") << "change " << i;
  }
}

}  // namespace
}  // namespace winnow
