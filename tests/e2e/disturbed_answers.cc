#include "tests/e2e/disturbed_answers.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <future>
#include <string>

namespace winnow::e2e {

std::vector<TokenIds> IdsAlone(const Cluster& cluster, const std::vector<Json>& requests) {
  std::vector<TokenIds> ids;
  for (const Json& request : requests) ids.push_back(Complete(cluster.http(), request).ids);
  return ids;
}

void ExpectPreemptionChangesNothing(const Cluster& cluster, const std::vector<Json>& requests,
                                    const std::vector<TokenIds>& alone) {
  ASSERT_EQ(requests.size(), alone.size());
  double preempted = 0;
  for (int round = 0; round < 20 && preempted < 4; ++round) {
    std::vector<std::future<Completion>> together;
    for (const Json& request : requests) {
      together.push_back(std::async(std::launch::async, [&] { return Complete(cluster.http(), request); }));
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      const Completion completion = together[i].get();
      ASSERT_TRUE(completion.ok()) << completion.error;
      EXPECT_EQ(completion.ids, alone[i]) << "request " << i;
      preempted += completion.Stat("preempted_count");
    }
  }
  EXPECT_GE(preempted, 4);
}

void KillARankInMidAnswer(const Cluster& cluster, const Json& request, std::string_view busy,
                          AnswerOfAKilledRank* answer) {
  answer->undisturbed = Complete(cluster.http(), request);
  ASSERT_TRUE(answer->undisturbed.ok()) << answer->undisturbed.error;
  const std::vector<pid_t> ranks = cluster.Pids("inference-rank");
  ASSERT_EQ(ranks.size(), 2u);
  size_t& tokens_at_kill = answer->tokens_at_kill;
  answer->disturbed = StreamCompletion(cluster.http(), request, [&](size_t tokens) {
    for (int rank = 0; rank < 2 && tokens >= 10 && tokens_at_kill == 0; ++rank) {
      const std::string name = "inference-" + std::to_string(rank);
      if (cluster.MetricsOf(name).Value(std::string(busy)) < 1) continue;
      kill(ranks[rank], SIGKILL);
      tokens_at_kill = tokens;
    }
    return true;
  });
  ASSERT_GT(tokens_at_kill, 0u) << "no rank was killed";
  EXPECT_TRUE(answer->disturbed.ok()) << answer->disturbed.error;
  EXPECT_EQ(answer->disturbed.ids, answer->undisturbed.ids);
}

void ExpectSamplesAreThoseAlone(GenerationClient& client, v1::GenerateRequest request, const Answer& together) {
  const uint32_t samples = request.n();
  request.set_n(1);
  for (uint32_t i = 0; i < samples; ++i) {
    request.mutable_sampling()->set_sample_index(i);
    const Answer alone = client.Generate(request)->Finish();
    ASSERT_TRUE(alone.status.ok()) << alone.status.error_message();
    EXPECT_EQ(together.ids(i), alone.ids()) << "sample " << i;
  }
}

}  // namespace winnow::e2e
