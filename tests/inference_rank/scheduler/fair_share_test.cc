#include "inference_rank/scheduler/fair_share.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "inference_rank/scheduler/scheduler.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using State = Sequence::State;

constexpr FairShare::Time kStart{std::chrono::hours(1)};
const KvLayout kLayout{2, 4, 2, 16, Dtype::kBf16};
constexpr Scheduler::Free kPlenty{.slot_pages = 100000, .prefill_bytes = size_t{1} << 40};

TEST(FairShareTest, WhoComesBackHasSavedNothing) {
  FairShare shares;
  shares.Arrive("busy", 1, kStart);
  shares.Charge("busy", 1000);
  shares.Arrive("late", 1, kStart);
  EXPECT_EQ(shares.served("late"), 1000);
  shares.Charge("late", 10);
  shares.Leave("late");
  shares.Charge("busy", 500);
  shares.Arrive("late", 1, kStart);
  EXPECT_EQ(shares.served("late"), 1500);
  // What it was served beyond others it still owes.
  shares.Charge("late", 300);
  shares.Leave("late");
  shares.Arrive("late", 1, kStart);
  EXPECT_EQ(shares.served("late"), 1800);
}

TEST(FairShareTest, ForgetsTenantsThatOweNothing) {
  FairShare shares;
  shares.Arrive("stays", 1, kStart);
  for (int i = 0; i < 1000; ++i) {
    const std::string tenant = "passes " + std::to_string(i);
    shares.Arrive(tenant, 1, kStart);
    shares.Charge(tenant, 10);
    shares.Leave(tenant);
    shares.Charge("stays", 20);
  }
  EXPECT_LE(shares.num_known(), 3u);
  // Everybody goes, and the counters go on from where they were.
  const double served = shares.served("stays");
  shares.Leave("stays");
  EXPECT_EQ(shares.num_known(), 0u);
  shares.Arrive("new", 1, kStart);
  EXPECT_EQ(shares.served("new"), served);
}

// A rank that computes 1000 prompt tokens or 50 rows a second, with a fake clock.
class SharedRank {
 public:
  SharedRank(uint32_t max_running, milliseconds age_bound = seconds(0))
      : scheduler({.max_running = max_running, .age_bound = age_bound}, kLayout) {}

  void Submit(const std::string& tenant, uint32_t prompt, uint32_t answer, double weight = 1, int priority = 0) {
    auto sequence = std::make_unique<Sequence>();
    sequence->tenant = tenant;
    sequence->tenant_weight = weight;
    sequence->priority = priority;
    sequence->prompt.assign(prompt, 1);
    sequence->max_positions = prompt + answer;
    sequence->request_id = ++submitted_;
    scheduler.Enqueue(std::move(sequence), now);
  }
  // One iteration.
  void Step() {
    while (Sequence* sequence = scheduler.Admit(kPlenty, now)) {
      sequence->state = State::kPrefilling;
      order.push_back(sequence->tenant);
    }
    const auto plan = scheduler.Plan(20, now);
    std::vector<const Sequence*> done;
    for (Sequence* sequence : plan.rows) {
      served[sequence->tenant] += FairShare::kGeneratedTokenCost;
      sequence->watermark = ++sequence->next_position;
      if (sequence->next_position == sequence->max_positions) done.push_back(sequence);
    }
    for (uint32_t left = plan.prefill_tokens; left > 0;) {
      Sequence* sequence = scheduler.NextPrefill(now);
      if (sequence == nullptr) break;
      const uint32_t count = std::min(left, sequence->prompt_tokens() - sequence->next_position);
      served[sequence->tenant] += count;
      left -= count;
      sequence->next_position += count;
      sequence->watermark = sequence->next_position;
      if (sequence->next_position == sequence->prompt_tokens()) sequence->state = State::kDecoding;
    }
    for (const Sequence* sequence : done) {
      ++finished[sequence->tenant];
      scheduler.Remove(sequence);
    }
    now += milliseconds(20);
  }

  Scheduler scheduler;
  FairShare::Time now = kStart;
  std::map<std::string, double> served;  // in prompt tokens
  std::map<std::string, int> finished;
  std::vector<std::string> order;  // of admission

 private:
  uint64_t submitted_ = 0;
};

TEST(SchedulerShares, AFloodOfOneTenantDoesNotHoldUpAnother) {
  SharedRank rank(1);
  for (int i = 0; i < 50; ++i) rank.Submit("flood", 100, 20);
  for (int i = 0; i < 10; ++i) rank.Step();
  for (int i = 0; i < 3; ++i) rank.Submit("guest", 100, 20);
  for (int i = 0; i < 400; ++i) rank.Step();
  ASSERT_GE(rank.order.size(), 8u);
  const std::vector<std::string> first(rank.order.begin(), rank.order.begin() + 7);
  EXPECT_EQ(first, std::vector<std::string>({"flood", "guest", "flood", "guest", "flood", "guest", "flood"}));
}

TEST(SchedulerShares, ServiceIsInTheRatioOfTheWeightsWhateverTheLengths) {
  std::mt19937 random(9);
  SharedRank rank(4);
  // "b" sends few long requests, "c" many short ones; each has always something waiting.
  const auto keep_busy = [&] {
    std::map<std::string, int> waiting;
    rank.scheduler.ForEach([&](Sequence& s) { waiting[s.tenant] += s.state == State::kWaiting; });
    if (waiting["a"] < 3) rank.Submit("a", 50 + random() % 50, 20 + random() % 20, 3);
    if (waiting["b"] < 3) rank.Submit("b", 400 + random() % 100, 100 + random() % 20, 1);
    while (waiting["c"]++ < 20) rank.Submit("c", 5 + random() % 5, 5 + random() % 5, 1);
  };
  for (int i = 0; i < 60000; ++i) {
    keep_busy();
    rank.Step();
  }
  // All but the four requests under way, of at most 740 prompt tokens' cost, is in the ratio.
  const double c = rank.served["c"];
  EXPECT_GT(c, 50000);
  EXPECT_NEAR(rank.served["a"] / 3, c, 4 * 740);
  EXPECT_NEAR(rank.served["b"], c, 4 * 740);
}

TEST(SchedulerShares, CachedPromptsAreNotPaidFor) {
  SharedRank rank(2);
  rank.Submit("cached", 1000, 10);
  rank.Submit("other", 1000, 10);
  Sequence* first = rank.scheduler.Admit(kPlenty, kStart);
  ASSERT_EQ(first->tenant, "cached");
  rank.scheduler.CreditCachedTokens(*first, 992);
  rank.scheduler.Admit(kPlenty, kStart);
  rank.Submit("other", 10, 10);
  rank.Submit("cached", 10, 10);
  rank.scheduler.Remove(first);
  EXPECT_EQ(rank.scheduler.Admit(kPlenty, kStart)->tenant, "cached");
}

TEST(SchedulerShares, AStarvingTenantGoesFirstAfterTheAgeBound) {
  constexpr seconds kBound(10);
  SharedRank rank(1, kBound);
  rank.Submit("patient", 100, 10, 1, -1);
  milliseconds waited(0);
  while (rank.finished["patient"] == 0 && waited < seconds(60)) {
    if (rank.scheduler.num_waiting() < 5) rank.Submit("urgent", 100, 10, 1, 5);
    rank.Step();
    waited = std::chrono::duration_cast<milliseconds>(rank.now - kStart);
  }
  EXPECT_GE(waited, kBound) << "it never waited: the test shows nothing";
  EXPECT_LE(waited, 2 * kBound);
}

}  // namespace
}  // namespace winnow
