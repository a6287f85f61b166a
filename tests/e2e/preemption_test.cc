// A sequence that is preempted and resumed says what it says when nobody disturbs it.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

constexpr int kTokens = 80;
// One of each way to select that keeps state from step to step.
const std::vector<std::string> kSelections = {
    "winnow", "async-token", "exact-token", "dense", "async-token,min_captured_mass=0.9", "quest"};

// About eight times as long as what is attended.
Json RequestFor(const std::string& selection) {
  Json request = GreedyRequest(DemoCaseOfAtLeast(2000).prompt, kTokens);
  request["winnow"] = {{"selection", selection}};
  if (selection == "exact-token") {
    request["temperature"] = 1.0;
    request["seed"] = 17;
    request["frequency_penalty"] = 0.5;
  }
  return request;
}

double SequencesThat(const Cluster& cluster, const char* outcome) {
  return cluster.MetricsOf("inference-0").Value("winnow_rank_sequences_total", {{"outcome", outcome}});
}

// What came of one selection's requests, one after the other.
struct Disturbed {
  int answers = 0;
  int preemptions = 0;
  std::string error;  // the first answer that was none
  int differing = 0;
};

// All selections at the same time, each of them again and again until every one has been preempted twice: at steps
// that depend on how fast the machine is.
std::vector<Disturbed> RunTogether(const Cluster& cluster, const std::vector<std::string>& selections,
                                   const std::map<std::string, TokenIds>& alone) {
  constexpr int kEnough = 2;
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::atomic<size_t> unpreempted{selections.size()};
  const auto run = [&](const std::string& selection) {
    Disturbed disturbed;
    while (disturbed.error.empty() && unpreempted > 0 && std::chrono::steady_clock::now() < give_up) {
      const Completion completion = Complete(cluster.http(), RequestFor(selection));
      if (!completion.ok()) {
        disturbed.error = completion.error;
        break;
      }
      ++disturbed.answers;
      disturbed.differing += completion.ids != alone.at(selection);
      const bool had_enough = disturbed.preemptions >= kEnough;
      disturbed.preemptions += static_cast<int>(completion.Stat("preempted_count"));
      if (!had_enough && disturbed.preemptions >= kEnough) --unpreempted;
    }
    return disturbed;
  };
  std::vector<std::future<Disturbed>> together;
  for (const std::string& selection : selections) {
    together.push_back(std::async(std::launch::async, run, selection));
  }
  std::vector<Disturbed> disturbed;
  for (auto& one : together) disturbed.push_back(one.get());
  return disturbed;
}

void ExpectUndisturbed(const Cluster& cluster, const std::vector<std::string>& selections) {
  std::map<std::string, TokenIds> alone;
  for (const std::string& selection : selections) {
    const Completion completion = Complete(cluster.http(), RequestFor(selection));
    ASSERT_TRUE(completion.ok()) << selection << ": " << completion.error;
    ASSERT_EQ(completion.ids.size(), static_cast<size_t>(kTokens)) << selection;
    ASSERT_EQ(completion.Stat("preempted_count"), 0) << selection << ": the undisturbed answer was disturbed";
    alone[selection] = completion.ids;
  }
  const std::vector<Disturbed> disturbed = RunTogether(cluster, selections, alone);
  int preemptions = 0;
  for (size_t i = 0; i < selections.size(); ++i) {
    EXPECT_EQ(disturbed[i].error, "") << selections[i];
    EXPECT_EQ(disturbed[i].differing, 0) << selections[i] << ", of " << disturbed[i].answers << " answers";
    EXPECT_GE(disturbed[i].preemptions, 2) << selections[i] << " in " << disturbed[i].answers << " answers";
    preemptions += disturbed[i].preemptions;
  }
  EXPECT_EQ(SequencesThat(cluster, "preempted"), preemptions);
  EXPECT_EQ(SequencesThat(cluster, "resumed"), preemptions);
  EXPECT_EQ(SequencesThat(cluster, "failed"), 0);
  EXPECT_EQ(SequencesThat(cluster, "fenced"), 0) << "a sequence was preempted while frames of it were under way";
}

// Slots for four of the narrow sequences, which "dense" and a guarded one need almost alone, and slices so short that
// each answer loses its place again and again.
struct ShortSlices {
  static Cluster::Options Options() {
    return {.flags = {"--selection=winnow,prefetch=temporal", "--budget=256", "--max-context=8192", "--max-running=4",
                      "--age-bound=30ms"}};
  }
};
using Preemption = SharedCluster<ShortSlices>;

TEST_F(Preemption, AtAnyStepChangesNoOutput) {
  ExpectUndisturbed(*cluster_, kSelections);
}

TEST_F(Preemption, LeavesNothingBehind) {
  std::vector<std::future<Completion>> cut;
  for (int i = 0; i < 6; ++i) {
    // Ended by the client at once or while it waits to be resumed.
    cut.push_back(std::async(std::launch::async, [i] {
      return StreamCompletion(cluster_->http(), RequestFor("winnow"),
                              [i](size_t tokens) { return tokens < 6 * (1u + i); });
    }));
  }
  for (auto& completion : cut) completion.get();
  EXPECT_TRUE(WaitUntil(std::chrono::seconds(20), [] {
    const Metrics inference = cluster_->MetricsOf("inference-0"), cache = cluster_->MetricsOf("cache-0");
    return inference.Value("winnow_slot_pages", {{"state", "used"}}) == 0 &&
           inference.Value("winnow_num_requests_waiting") == 0 &&
           cache.Value("winnow_kv_blocks", {{"state", "used"}}) == 0;
  }));
}

// A position may need the selection of an earlier one, so that a resumed sequence goes back to that.
struct Reuse {
  static Cluster::Options Options() {
    return {.flags = {"--selection=winnow,reuse_interval=4", "--budget=256", "--max-context=8192", "--max-running=2",
                      "--age-bound=30ms"}};
  }
};
using PreemptionWithReuse = SharedCluster<Reuse>;

TEST_F(PreemptionWithReuse, AtAnyStepChangesNoOutput) {
  ExpectUndisturbed(*cluster_, {"winnow", "winnow,predictor=temporal", "winnow,predictor=depth", "winnow,budget=128"});
}

struct OnePlace {
  static Cluster::Options Options() {
    return {.flags = {"--budget=256", "--max-context=8192", "--max-running=1", "--age-bound=0s"}};
  }
};
using Priority = SharedCluster<OnePlace>;

TEST_F(Priority, AnUrgentRequestTakesThePlaceOfARunningOne) {
  Json patient = RequestFor("winnow");
  patient["max_tokens"] = 300;
  Json urgent = RequestFor("async-token");
  const Completion patient_alone = Complete(cluster_->http(), patient);
  const Completion urgent_alone = Complete(cluster_->http(), urgent);
  ASSERT_TRUE(patient_alone.ok()) << patient_alone.error;
  ASSERT_TRUE(urgent_alone.ok()) << urgent_alone.error;
  ASSERT_EQ(SequencesThat(*cluster_, "preempted"), 0);

  patient["winnow"]["priority"] = -1;
  std::atomic<bool> patient_ended{false};
  std::future<Completion> other;
  bool was_first = false;
  const Completion completion = StreamCompletion(cluster_->http(), patient, [&](size_t tokens) {
    if (tokens >= 10 && !other.valid()) {
      other = std::async(std::launch::async, [&] {
        Completion done = Complete(cluster_->http(), urgent);
        was_first = !patient_ended;
        return done;
      });
    }
    return true;
  });
  patient_ended = true;
  ASSERT_TRUE(other.valid());
  EXPECT_EQ(other.get().ids, urgent_alone.ids);
  EXPECT_TRUE(was_first);
  EXPECT_EQ(completion.ids, patient_alone.ids);
  EXPECT_EQ(SequencesThat(*cluster_, "preempted"), 1);
  EXPECT_EQ(SequencesThat(*cluster_, "resumed"), 1);
}

TEST_F(Priority, OutsideItsRangeIsRefused) {
  for (const Json& priority : {Json(101), Json("high")}) {
    Json request = RequestFor("winnow");
    request["winnow"]["priority"] = priority;
    const Completion completion = Complete(cluster_->http(), request);
    EXPECT_EQ(completion.status, 400) << priority;
    EXPECT_NE(completion.error.find("winnow.priority"), std::string::npos) << completion.error;
  }
}

// Answers stream while long prompts come in, under a token budget that both share.
struct SmallIterations {
  static Cluster::Options Options() {
    return {.flags = {"--budget=256", "--max-context=8192", "--max-batch-tokens=64", "--tpot-target=40ms",
                      "--max-inject-tokens=48"}};
  }
};
using TokenBudget = SharedCluster<SmallIterations>;

TEST_F(TokenBudget, ChangesNoOutput) {
  const Completion alone = Complete(cluster_->http(), RequestFor("winnow"));
  ASSERT_TRUE(alone.ok()) << alone.error;
  std::vector<std::future<Completion>> together;
  Json streamed = RequestFor("winnow");
  streamed["max_tokens"] = 1500;  // so many that it still runs when the prompts come
  const Completion beside = StreamCompletion(cluster_->http(), streamed, [&](size_t tokens) {
    while (tokens >= 4 && together.size() < 3) {
      together.push_back(
          std::async(std::launch::async, [] { return Complete(cluster_->http(), RequestFor("winnow")); }));
    }
    return true;
  });
  ASSERT_TRUE(beside.ok()) << beside.error;
  ASSERT_FALSE(together.empty());
  EXPECT_EQ(TokenIds(beside.ids.begin(), beside.ids.begin() + kTokens), alone.ids);
  for (auto& other : together) {
    const Completion completion = other.get();
    EXPECT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.ids, alone.ids);
  }
  const Metrics metrics = cluster_->MetricsOf("inference-0");
  EXPECT_GT(metrics.Value("winnow_injected_tokens_total"), 0);
  EXPECT_LE(metrics.Value("winnow_max_inject_tokens"), 48);
  EXPECT_GE(metrics.Value("winnow_prefill_chunks_total"), 2000.0 / 64);
}

}  // namespace
}  // namespace winnow::e2e
