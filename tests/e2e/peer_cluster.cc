#include "tests/e2e/peer_cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/e2e/golden.h"

namespace winnow::e2e {

std::unique_ptr<Cluster> StartOnHostGpus(std::vector<std::string> flags, Process::Environment environment) {
  flags.insert(flags.end(), {"--device=cuda", "--budget=256", "--max-context=4096"});
  environment.emplace_back("WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN);
  return StartOrFail(std::move(flags), std::move(environment));
}

std::unique_ptr<Cluster> StartCluster(std::vector<std::string> flags, Process::Environment environment) {
  flags.push_back("--max-running=4");
  return StartOnHostGpus(std::move(flags), std::move(environment));
}

std::string Flag(const char* name, int value) {
  return std::string(name) + "=" + std::to_string(value);
}

std::vector<std::string> PeerFlags(const std::string& selection, PeerPlacement placement, int ranks,
                                   int spare_cache_ranks) {
  std::vector<std::string> flags = {"--cache-device=cuda:" + std::to_string(placement.gpus * ranks), "--transport=p2p",
                                    "--selection=" + selection,
                                    Flag("--cache-ranks", placement.gpus + spare_cache_ranks)};
  if (placement.gpus > 1) {
    flags.push_back(Flag("--tensor-parallel", placement.gpus));
    flags.push_back(Flag("--cache-shards", placement.gpus));
  }
  return flags;
}

std::vector<std::string> FrameFlags(const std::string& selection, PeerPlacement placement) {
  return {"--selection=" + selection, "--transport=ucx", "--select-in-place=off",
          Flag("--tensor-parallel", placement.gpus)};
}

std::vector<TokenIds> Prompts(size_t count, size_t first_tokens, size_t step) {
  std::vector<TokenIds> prompts;
  for (size_t i = 0; i < count; ++i) prompts.push_back(DemoText(first_tokens + step * i, i));
  return prompts;
}

Completion AnswerOf(const Cluster& cluster, const TokenIds& prompt, int tokens) {
  Completion completion = Complete(cluster.http(), GreedyRequest(prompt, tokens));
  EXPECT_TRUE(completion.ok()) << completion.error;
  return completion;
}

TokenIds IdsOf(const Cluster& cluster, const TokenIds& prompt, int tokens) {
  return AnswerOf(cluster, prompt, tokens).ids;
}

std::vector<TokenIds> AnswersAlone(const Cluster& cluster, const std::vector<TokenIds>& prompts, int tokens) {
  std::vector<TokenIds> answers;
  for (const TokenIds& prompt : prompts) answers.push_back(IdsOf(cluster, prompt, tokens));
  return answers;
}

std::vector<std::future<Completion>> Begin(const Cluster& cluster, const std::vector<TokenIds>& prompts, int tokens) {
  std::vector<std::future<Completion>> answers;
  for (const TokenIds& prompt : prompts) {
    answers.push_back(
        std::async(std::launch::async, [&cluster, &prompt, tokens] { return AnswerOf(cluster, prompt, tokens); }));
  }
  return answers;
}

std::vector<TokenIds> AnswersTogether(const Cluster& cluster, const std::vector<TokenIds>& prompts, int tokens) {
  std::vector<TokenIds> answers;
  for (std::future<Completion>& answer : Begin(cluster, prompts, tokens)) answers.push_back(answer.get().ids);
  return answers;
}

double ValueOf(const Cluster& cluster, const char* name) {
  return cluster.MetricsOf("inference-0").Value(name);
}

double PeerSteps(const Cluster& cluster) {
  return ValueOf(cluster, "winnow_peer_steps_total");
}

bool AwaitBatchRows(const Cluster& cluster, double sequences, const std::string& inference_rank) {
  return WaitUntil(std::chrono::milliseconds(30'000),
                   [&] { return cluster.MetricsOf(inference_rank).Value("winnow_peer_sequences") == sequences; });
}

double ActiveOn(const Cluster& cluster, const std::string& cache_rank) {
  return cluster.MetricsOf(cache_rank).Value("winnow_sequences", {{"state", "active"}});
}

void ExpectThatPreemptionChangesNoAnswer(const Cluster& cluster, const std::vector<TokenIds>& prompts,
                                         size_t batch_rows) {
  constexpr int kLong = 30;
  std::vector<TokenIds> undisturbed;
  for (size_t first = 0; first < prompts.size(); first += batch_rows) {
    const std::vector<TokenIds> some(prompts.begin() + first,
                                     prompts.begin() + std::min(first + batch_rows, prompts.size()));
    for (TokenIds& ids : AnswersTogether(cluster, some, kLong)) undisturbed.push_back(std::move(ids));
  }
  auto together = Begin(cluster, prompts, kLong);
  double preemptions = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Completion completion = together[i].get();
    EXPECT_EQ(completion.ids, undisturbed[i]) << i;
    preemptions += completion.Stat("preempted_count");
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_EQ(ValueOf(cluster, "winnow_peer_links_failed_total"), 0);
  EXPECT_EQ(PeerSteps(cluster), ValueOf(cluster, "winnow_decode_steps_total"));
}

}  // namespace winnow::e2e
