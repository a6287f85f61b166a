#pragma once
#include <sys/types.h>

#include <string_view>
#include <vector>

#include "tests/e2e/cluster.h"
#include "tests/e2e/completion.h"
#include "tests/e2e/generation_calls.h"

// What is asked of every way of decoding: whatever disturbs it, an answer has the tokens that it has undisturbed. All
// of these fail the test themselves.
namespace winnow::e2e {

// Makes the requests together, on a cluster that preempts some of them for others, in at most twenty rounds until there
// were four preemptions, which there must be. `alone`: the ids that each is to have.
void ExpectPreemptionChangesNothing(const Cluster& cluster, const std::vector<Json>& requests,
                                    const std::vector<TokenIds>& alone);
// The ids of each from requests that are made one after the other.
std::vector<TokenIds> IdsAlone(const Cluster& cluster, const std::vector<Json>& requests);

// An answer whose inference rank, one of two, is killed behind its tenth token.
struct AnswerOfAKilledRank {
  Completion undisturbed, disturbed;
  size_t tokens_at_kill = 0;
};
// Expects that both were answered, with the same ids. The rank to kill is the one whose metric `busy` is 1 or more.
void KillARankInMidAnswer(const Cluster& cluster, const Json& request, std::string_view busy,
                          AnswerOfAKilledRank* answer);

// Each of the samples has the ids of a request for that one alone. `together` answers `request`.
void ExpectSamplesAreThoseAlone(GenerationClient& client, v1::GenerateRequest request, const Answer& together);

}  // namespace winnow::e2e
