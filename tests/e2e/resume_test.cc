// Clients that lose their connection, or their router, go on with their answers.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/e2e/generation_calls.h"
#include "tests/e2e/golden.h"
#include "tests/e2e/resuming_client.h"
#include "tests/e2e/router_pair.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

constexpr int kTokens = 160;
constexpr const char* kPath = ResumingClient::kPath;

Json Request(size_t i, int tokens = kTokens) {
  Json request = GreedyRequest(DemoText(300 + 40 * i, 31 * i), tokens);
  if (i % 2 == 1) {
    request["temperature"] = 1.1;
    request["seed"] = i;
  }
  return request;
}

class Resume : public testing::Test {
 protected:
  void StartPair(const std::vector<std::string>& rank_flags = {}) {
    auto started = RouterPair::Start(rank_flags);
    ASSERT_TRUE(started.ok()) << started.status().message();
    routers_ = *std::move(started);
  }
  void TearDown() override {
    if (HasFailure() && routers_ != nullptr) GTEST_LOG_(INFO) << routers_->Logs();
  }
  bool NothingIsLeft(milliseconds limit) {
    return WaitUntil(limit, [&] { return routers_->SequencesLeft() == 0; });
  }

  std::unique_ptr<RouterPair> routers_;
};

TEST_F(Resume, AClientThatLostItsConnectionGoesOnWhereItWas) {
  ASSERT_NO_FATAL_FAILURE(StartPair());
  for (size_t i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    Json request = Request(i);
    if (i >= 2) request["n"] = 2;
    ResumingClient undisturbed(*routers_, request), cut(*routers_, request);
    undisturbed.Read();
    ASSERT_TRUE(undisturbed.done()) << undisturbed.error();
    for (const size_t after : {1, 2, 40, 41, 100}) cut.Read(after, /*stay=*/true);
    EXPECT_FALSE(cut.done());
    cut.Read(SIZE_MAX, /*stay=*/true);
    ASSERT_TRUE(cut.done()) << cut.error();
    for (int choice = 0; choice < (i >= 2 ? 2 : 1); ++choice) {
      EXPECT_EQ(cut.ids(choice), undisturbed.ids(choice));
      EXPECT_EQ(cut.text(choice), undisturbed.text(choice));
    }
    EXPECT_EQ(cut.finishes(), undisturbed.finishes());
  }
  EXPECT_GE(routers_->RouterMetrics(0).Value("winnow_router_resumed_outputs_total", {{"mode", "attach"}}), 20);
  EXPECT_EQ(routers_->RouterMetrics(0).Value("winnow_router_resumed_outputs_total", {{"mode", "recompute"}}), 0);
  EXPECT_TRUE(NothingIsLeft(milliseconds(10'000)));
}

TEST_F(Resume, SixteenStreamsGoOnOnTheOtherRouterWhenTheirsIsKilled) {
  ASSERT_NO_FATAL_FAILURE(StartPair());
  constexpr size_t kStreams = 16;
  std::vector<std::unique_ptr<ResumingClient>> undisturbed, disturbed;
  for (size_t i = 0; i < kStreams; ++i) {
    undisturbed.push_back(std::make_unique<ResumingClient>(*routers_, Request(i), i % 2));
    undisturbed.back()->Read();
    ASSERT_TRUE(undisturbed.back()->done()) << undisturbed.back()->error();
  }
  std::atomic<size_t> begun{0};
  std::vector<std::thread> clients;
  for (size_t i = 0; i < kStreams; ++i) {
    // Three of four on the router that is killed.
    disturbed.push_back(std::make_unique<ResumingClient>(*routers_, Request(i), i % 4 == 3 ? 1 : 0));
    clients.emplace_back([&, i] {
      disturbed[i]->Read(5, /*stay=*/true);
      ++begun;
      disturbed[i]->Read();
    });
  }
  EXPECT_TRUE(WaitUntil(milliseconds(60'000), [&] { return begun == kStreams; }));
  routers_->KillRouter(0);
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < kStreams; ++i) {
    SCOPED_TRACE(i);
    EXPECT_TRUE(disturbed[i]->done()) << disturbed[i]->error();
    EXPECT_EQ(disturbed[i]->ids(), undisturbed[i]->ids());
    EXPECT_EQ(disturbed[i]->text(), undisturbed[i]->text());
    EXPECT_EQ(disturbed[i]->finishes(), 1);
  }
  const Metrics survivor = routers_->RouterMetrics(1);
  EXPECT_GT(survivor.Value("winnow_router_resumed_outputs_total", {{"mode", "attach"}}), 0);
  EXPECT_EQ(survivor.Value("winnow_router_resumed_outputs_total", {{"mode", "recompute"}}), 0);
  EXPECT_EQ(survivor.Value("winnow_router_mismatched_tokens_total"), 0);
  EXPECT_TRUE(NothingIsLeft(milliseconds(10'000)));
  // The ranks come back to it by themselves.
  routers_->RestartRouter(0);
  EXPECT_TRUE(WaitUntil(milliseconds(30'000), [&] { return routers_->IsReady(0); }));
  ResumingClient again(*routers_, Request(0), 0);
  again.Read(SIZE_MAX, /*stay=*/true);
  EXPECT_EQ(again.ids(), undisturbed[0]->ids());
}

TEST_F(Resume, WithItsRankGoneTooItIsComputedAgain) {
  ASSERT_NO_FATAL_FAILURE(StartPair());
  ResumingClient undisturbed(*routers_, Request(1)), cut(*routers_, Request(1));
  undisturbed.Read();
  const auto prompt_tokens = [&] {
    const Metrics rank = routers_->InferenceMetrics(0);
    return rank.Value("winnow_rank_prompt_tokens_total") + rank.Value("winnow_rank_cached_prompt_tokens_total");
  };
  const double before = prompt_tokens();
  cut.Read(30);
  // It may have all of its tokens by now, and is not among those that run.
  const int busy = prompt_tokens() > before ? 0 : 1;
  routers_->KillRouter(0);
  routers_->KillInferenceRank(busy);
  cut.Read();
  ASSERT_TRUE(cut.done()) << cut.error();
  EXPECT_EQ(cut.ids(), undisturbed.ids());
  EXPECT_EQ(cut.text(), undisturbed.text());
  EXPECT_EQ(routers_->RouterMetrics(1).Value("winnow_router_resumed_outputs_total", {{"mode", "recompute"}}), 1);
}

TEST_F(Resume, WhatNobodyResumesIsFreedAfterTheGrace) {
  ASSERT_NO_FATAL_FAILURE(StartPair({"--resume-grace=1s"}));
  ResumingClient client(*routers_, Request(0, 3000));
  client.Read(5);
  EXPECT_TRUE(WaitUntil(milliseconds(10'000), [&] { return routers_->Held() == 1; }));
  EXPECT_GT(routers_->SequencesLeft(), 0);
  EXPECT_TRUE(NothingIsLeft(milliseconds(20'000)));
  EXPECT_EQ(routers_->Held(), 0);
}

TEST_F(Resume, AnAbortFreesAtOnceOnAnyRouterAndOthersMayNotTouchIt) {
  ASSERT_NO_FATAL_FAILURE(StartPair({"--resume-grace=10m"}));
  ResumingClient client(*routers_, Request(0, 3000));
  client.Read(5);
  EXPECT_TRUE(WaitUntil(milliseconds(10'000), [&] { return routers_->Held() == 1; }));

  const HttpClient other = routers_->http(1);
  const HttpClient resuming = other.With({{"Winnow-Resume", client.token()}});
  Json body = Request(0, 3000);
  body["stream"] = true;
  EXPECT_EQ(resuming.Post(kPath, body).status, 400) << "without winnow.resumable";
  body["winnow"]["resumable"] = true;
  Json changed = body;
  changed["temperature"] = 0.5;
  const auto code = [](const HttpReply& reply) { return reply.json()["error"].value("code", ""); };
  EXPECT_EQ(code(resuming.Post(kPath, changed)), "resume_token_mismatch");
  EXPECT_EQ(code(other.With({{"Winnow-Resume", "winnow1.AAAA"}}).Post(kPath, body)), "resume_token_malformed");
  EXPECT_EQ(resuming.With({{"Last-Event-ID", "x"}}).Post(kPath, body).status, 400);
  const HttpReply stranger = resuming.With({{"Authorization", "Bearer another"}}).Post(kPath, body);
  EXPECT_EQ(stranger.status, 403);
  EXPECT_EQ(code(stranger), "resume_token_of_another_key");
  EXPECT_EQ(code(other.Post("/abort", Json::object())), "invalid_value");
  EXPECT_EQ(routers_->Held(), 1);

  EXPECT_EQ(other.Post("/abort", {{"resume_token", client.token()}}).status, 200);
  EXPECT_TRUE(NothingIsLeft(milliseconds(5'000)));
  EXPECT_EQ(routers_->Held(), 0);
}

TEST_F(Resume, OverGrpcWithTheTokenOfTheFirstMessage) {
  ASSERT_NO_FATAL_FAILURE(StartPair());
  v1::GenerateRequest request = SamplesOf("", DemoText(400), 2, kTokens);
  request.set_resumable(true);
  GenerationClient first(routers_->grpc_address(0)), second(routers_->grpc_address(1));
  const Answer undisturbed = first.Generate(request)->Finish();
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status.error_message();

  auto call = first.Generate(request);
  ASSERT_TRUE(call->ReadUntil(20));
  call->Cancel();
  call->Finish();
  v1::ResumeRequest resume;
  resume.set_resume_token(call->answer().accepted.resume_token());
  *resume.mutable_request() = request;
  for (uint32_t output = 0; output < 2; ++output) {
    const Output& had = call->answer().outputs.at(output);
    v1::OutputPosition* position = resume.add_positions();
    position->set_next_index(static_cast<uint32_t>(had.ids.size()));
    position->set_text_bytes(had.text.size());
  }
  const Answer rest = second.Resume(resume)->Finish();
  ASSERT_TRUE(rest.status.ok()) << rest.status.error_message();
  for (uint32_t output = 0; output < 2; ++output) {
    const Output& had = call->answer().outputs.at(output);
    TokenIds ids = had.ids;
    ids.insert(ids.end(), rest.ids(output).begin(), rest.ids(output).end());
    EXPECT_EQ(ids, undisturbed.ids(output));
    EXPECT_EQ(had.text + rest.outputs.at(output).text, undisturbed.outputs.at(output).text);
    EXPECT_EQ(rest.outputs.at(output).first_index, had.ids.size());
    EXPECT_FALSE(rest.outputs.at(output).has_gaps);
  }

  resume.mutable_request()->set_ignore_eos(false);
  const Answer refused = second.Resume(resume)->Finish();
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(refused.status.error_details().find("RESUME_TOKEN_MISMATCH"), std::string::npos);
  EXPECT_NE(refused.status.error_details().find("google.rpc.BadRequest"), std::string::npos);
}

}  // namespace
}  // namespace winnow::e2e
