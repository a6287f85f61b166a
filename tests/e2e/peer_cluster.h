#pragma once
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/cluster.h"
#include "tests/e2e/completion.h"

namespace winnow::e2e {

// Clusters whose decode steps run from GPU to GPU, GPUs made of host memory whose processes map each other's
// (tests/support/host_gpu), and requests to them.

inline constexpr int kTokens = 16;

std::unique_ptr<Cluster> StartOnHostGpus(std::vector<std::string> flags, Process::Environment environment = {});
// The same with four batch rows.
std::unique_ptr<Cluster> StartCluster(std::vector<std::string> flags, Process::Environment environment = {});

// One GPU for the model and one cache rank, or two GPUs that share its heads and a cache rank for the heads of each.
struct PeerPlacement {
  const char* name;
  int gpus = 1;
};
inline constexpr PeerPlacement kPlacements[] = {{"OneGpu", 1}, {"TwoGpus", 2}};
std::string Flag(const char* name, int value);
// Each inference rank and each cache rank has GPUs of its own.
std::vector<std::string> PeerFlags(const std::string& selection, PeerPlacement placement = kPlacements[0],
                                   int ranks = 1, int spare_cache_ranks = 0);
// The same model beside one cache rank on the host, which selects and sends its rows in frames.
std::vector<std::string> FrameFlags(const std::string& selection, PeerPlacement placement = kPlacements[0]);

// Of different lengths and texts.
std::vector<TokenIds> Prompts(size_t count, size_t first_tokens, size_t step);
// Greedy; that a request fails is a failure of the test.
Completion AnswerOf(const Cluster& cluster, const TokenIds& prompt, int tokens = kTokens);
TokenIds IdsOf(const Cluster& cluster, const TokenIds& prompt, int tokens = kTokens);
// One after the other.
std::vector<TokenIds> AnswersAlone(const Cluster& cluster, const std::vector<TokenIds>& prompts, int tokens = kTokens);
// All at once, so that they share steps. Cluster and prompts outlive the futures.
std::vector<std::future<Completion>> Begin(const Cluster& cluster, const std::vector<TokenIds>& prompts,
                                           int tokens = kTokens);
std::vector<TokenIds> AnswersTogether(const Cluster& cluster, const std::vector<TokenIds>& prompts,
                                      int tokens = kTokens);

// Of inference-0.
double ValueOf(const Cluster& cluster, const char* name);
double PeerSteps(const Cluster& cluster);
// Until so many sequences decode over the peer links of `inference_rank`.
bool AwaitBatchRows(const Cluster& cluster, double sequences, const std::string& inference_rank = "inference-0");
// Sequences that are attached.
double ActiveOn(const Cluster& cluster, const std::string& cache_rank);

// Of a cluster with a short --age-bound: answers to more prompts than there are batch rows are those that so many at a
// time get, and all steps are over peer links.
void ExpectThatPreemptionChangesNoAnswer(const Cluster& cluster, const std::vector<TokenIds>& prompts,
                                         size_t batch_rows);

}  // namespace winnow::e2e
