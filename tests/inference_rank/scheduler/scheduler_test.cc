#include "inference_rank/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "common/selection/presets.h"

namespace winnow {
namespace {

const KvLayout kLayout{2, 4, 2, 16, Dtype::kBf16};

std::unique_ptr<Sequence> NewSequence(uint64_t id, uint32_t prompt, uint32_t max_positions) {
  auto sequence = std::make_unique<Sequence>();
  sequence->request_id = id;
  sequence->prompt.assign(prompt, 1);
  sequence->max_positions = max_positions;
  sequence->spec = {.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  return sequence;
}

constexpr Scheduler::Time kStart{std::chrono::hours(1)};
constexpr Scheduler::Free kPlenty{.slot_pages = 100000, .prefill_bytes = size_t{1} << 40};

TEST(SchedulerTest, AdmitsInOrderUpToMaxRunning) {
  Scheduler scheduler({.max_running = 2}, kLayout);
  for (uint64_t id = 1; id <= 3; ++id) scheduler.Enqueue(NewSequence(id, 10, 20), kStart);
  Sequence* first = scheduler.Admit(kPlenty, kStart);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->request_id, 1u);
  EXPECT_EQ(scheduler.Admit(kPlenty, kStart)->request_id, 2u);
  EXPECT_EQ(scheduler.Admit(kPlenty, kStart), nullptr);
  EXPECT_EQ(scheduler.num_waiting(), 1u);
  scheduler.Remove(first);
  EXPECT_EQ(scheduler.Admit(kPlenty, kStart)->request_id, 3u);
}

// Its rank was lost while its prompt was waiting or being computed there.
TEST(SchedulerTest, WhatBeganOnAnotherRankGoesBeforeWhatIsNewHere) {
  Scheduler scheduler({.max_running = 3}, kLayout);
  for (uint64_t id = 1; id <= 3; ++id) scheduler.Enqueue(NewSequence(id, 10, 20), kStart);
  Sequence* const running = scheduler.Admit(kPlenty, kStart);
  running->state = Sequence::State::kPrefilling;
  auto lost = NewSequence(4, 10, 20);
  lost->attach = true;
  scheduler.Enqueue(std::move(lost), kStart);
  Sequence* const admitted = scheduler.Admit(kPlenty, kStart);
  ASSERT_NE(admitted, nullptr);
  EXPECT_EQ(admitted->request_id, 4u);
  admitted->state = Sequence::State::kPrefilling;
  EXPECT_EQ(scheduler.NextPrefill(kStart), admitted);
  EXPECT_EQ(scheduler.Admit(kPlenty, kStart)->request_id, 2u) << "in their order";
}

// All that its first rank had computed was lost with it, so that it is opened anew.
TEST(SchedulerTest, AnAnswerThatIsComputedAgainGoesBeforePromptsWithoutTokens) {
  Scheduler scheduler({.max_running = 8}, kLayout);
  scheduler.Enqueue(NewSequence(1, 10, 20), kStart);
  auto prompt = NewSequence(2, 10, 20);
  prompt->repeats = true;
  scheduler.Enqueue(std::move(prompt), kStart);
  auto answer = NewSequence(3, 10, 20);
  answer->repeats = true;
  answer->generated = {7};
  scheduler.Enqueue(std::move(answer), kStart);
  std::vector<uint64_t> order;
  std::vector<Sequence*> admitted;
  while (Sequence* const next = scheduler.Admit(kPlenty, kStart)) {
    order.push_back(next->request_id);
    admitted.push_back(next);
    next->state = Sequence::State::kPrefilling;
  }
  EXPECT_EQ(order, (std::vector<uint64_t>{3, 2, 1}));
  EXPECT_EQ(scheduler.NextPrefill(kStart), admitted[0]);
}

TEST(SchedulerTest, NothingOvertakesAHeadThatDoesNotFit) {
  Scheduler scheduler({.max_running = 8}, kLayout);
  scheduler.Enqueue(NewSequence(1, 5000, 6000), kStart);
  scheduler.Enqueue(NewSequence(2, 10, 20), kStart);
  const uint32_t needed = WorkingSet::PagesNeeded(kLayout, NewSequence(1, 5000, 6000)->spec, 6000);
  EXPECT_EQ(scheduler.Admit({.slot_pages = needed - 1, .prefill_bytes = size_t{1} << 40}, kStart), nullptr);
  const size_t arena = PrefillSizing::AllKvBytes(kLayout, 5000);
  EXPECT_EQ(scheduler.Admit({.slot_pages = needed, .prefill_bytes = arena - 1}, kStart), nullptr);
  EXPECT_EQ(scheduler.Admit({.slot_pages = needed, .prefill_bytes = arena}, kStart)->request_id, 1u);
}

TEST(SchedulerTest, SlotsThatOthersHaveForAHeadNeedNotBeFree) {
  Scheduler scheduler({.max_running = 8}, kLayout);
  uint32_t shared = 3;
  scheduler.ShareSlots([&](const Sequence& sequence) { return sequence.request_id == 2 ? shared : 0; });
  const uint32_t needed = WorkingSet::PagesNeeded(kLayout, NewSequence(1, 10, 20)->spec, 20);
  ASSERT_GT(needed, shared);
  const Scheduler::Free free{.slot_pages = needed - 3, .prefill_bytes = kPlenty.prefill_bytes};
  scheduler.Enqueue(NewSequence(1, 10, 20), kStart);
  EXPECT_EQ(scheduler.Admit(free, kStart), nullptr);
  scheduler.Remove(scheduler.Admit(kPlenty, kStart));
  scheduler.Enqueue(NewSequence(2, 10, 20), kStart);
  shared = 2;
  EXPECT_EQ(scheduler.Admit(free, kStart), nullptr);
  shared = 3;
  EXPECT_NE(scheduler.Admit(free, kStart), nullptr);
}

TEST(SchedulerTest, RowsGoBehindTheGpusMemoryWhereTheyAreSelectedAndNotWhereAllOfThemAreRead) {
  constexpr uint32_t kPages = 4 * 94;  // a sequence of 6,000
  Scheduler scheduler(
      {.max_running = 8, .slot_tiers = {.pages = {.front = 2 * kPages, .host = 2 * kPages}, .staging_slots = 2048}},
      kLayout);
  const Scheduler::Free front_is_taken{
      .slot_pages = kPages - 1, .host_slot_pages = 2 * kPages, .prefill_bytes = kPlenty.prefill_bytes};
  auto dense = NewSequence(1, 5000, 6000);
  dense->spec = *FindPreset("dense");
  scheduler.Enqueue(std::move(dense), kStart);
  EXPECT_EQ(scheduler.Admit(front_is_taken, kStart), nullptr);
  scheduler.Remove(scheduler.Admit(kPlenty, kStart));
  auto sparse = NewSequence(2, 5000, 6000);
  sparse->spec = *FindPreset("winnow");
  sparse->spec.budget_tokens = 512;
  sparse->slot_order = SlotOrder::kByPosition;
  scheduler.Enqueue(std::move(sparse), kStart);
  EXPECT_NE(scheduler.Admit(front_is_taken, kStart), nullptr);
}

TEST(SchedulerTest, WhatIsHandedOverTakesNoPlace) {
  Scheduler scheduler({.max_running = 1}, kLayout);
  for (uint64_t id = 1; id <= 2; ++id) scheduler.Enqueue(NewSequence(id, 10, 20), kStart);
  Sequence* first = scheduler.Admit(kPlenty, kStart);
  first->state = Sequence::State::kHandingOver;
  EXPECT_EQ(scheduler.Admit(kPlenty, kStart), nullptr);
  first->state = Sequence::State::kHandedOver;
  EXPECT_EQ(scheduler.num_running(), 0u);
  EXPECT_EQ(scheduler.Admit(kPlenty, kStart)->request_id, 2u);
  EXPECT_NE(scheduler.Find([](const Sequence& sequence) { return sequence.request_id == 1; }), nullptr);
}

TEST(SchedulerTest, APromptForAnotherRankNeedsNoSlots) {
  Scheduler scheduler({.max_running = 8}, kLayout);
  const Scheduler::Free no_slots{.slot_pages = 0, .prefill_bytes = size_t{1} << 40};
  auto attaches = NewSequence(1, 10, 20);
  attaches->hand_over = attaches->attach = true;  // at worst its prompt is prefilled again
  scheduler.Enqueue(std::move(attaches), kStart);
  EXPECT_EQ(scheduler.Admit(no_slots, kStart)->request_id, 1u);
  scheduler.Enqueue(NewSequence(2, 10, 20), kStart);
  EXPECT_EQ(scheduler.Admit(no_slots, kStart), nullptr);
  EXPECT_EQ(scheduler.Admit(kPlenty, kStart)->request_id, 2u);
  auto hands_over = NewSequence(3, 10, 20);
  hands_over->hand_over = true;
  scheduler.Enqueue(std::move(hands_over), kStart);
  EXPECT_EQ(scheduler.Admit(no_slots, kStart)->request_id, 3u);
}

TEST(SchedulerTest, PrefillsTheOldestAndSkipsWhatHasFailed) {
  Scheduler scheduler({.max_running = 8}, kLayout);
  for (uint64_t id = 1; id <= 2; ++id) scheduler.Enqueue(NewSequence(id, 10, 20), kStart);
  Sequence* first = scheduler.Admit(kPlenty, kStart);
  Sequence* second = scheduler.Admit(kPlenty, kStart);
  EXPECT_EQ(scheduler.NextPrefill(kStart), nullptr);  // not opened yet
  first->state = second->state = Sequence::State::kPrefilling;
  EXPECT_EQ(scheduler.NextPrefill(kStart), first);
  first->Fail(absl::UnavailableError("gone"), true);
  EXPECT_EQ(scheduler.NextPrefill(kStart), second);
}

TEST(SchedulerTest, FinishesAChunkBeforeAnotherPrompt) {
  Scheduler scheduler({.max_running = 8}, kLayout);
  Sequence* sequences[2];
  for (uint64_t id = 0; id < 2; ++id) {
    scheduler.Enqueue(NewSequence(id, 10, 20), kStart);
    sequences[id] = scheduler.Admit(kPlenty, kStart);
    sequences[id]->state = Sequence::State::kPrefilling;
    sequences[id]->arena.emplace(PrefillArena::Create(kLayout, 10).value());
  }
  EXPECT_EQ(scheduler.NextPrefill(kStart), sequences[0]);
  sequences[1]->arena->chunk_end = 5;
  EXPECT_EQ(scheduler.NextPrefill(kStart), sequences[1]);
  sequences[1]->Fail(absl::UnavailableError("gone"), true);
  EXPECT_EQ(scheduler.NextPrefill(kStart), sequences[0]);
}

TEST(SchedulerTest, DecodesEverythingThatDecodesGroupedByCacheRank) {
  Scheduler scheduler({.max_running = 8}, kLayout);
  auto link = [](const char* address) {
    return std::make_shared<CacheLink>(address, grpc::CreateChannel(address, grpc::InsecureChannelCredentials()),
                                       [] {});
  };
  const std::shared_ptr<CacheLink> links[] = {link("127.0.0.1:1"), link("127.0.0.1:2")};
  std::vector<Sequence*> admitted;
  for (uint64_t id = 0; id < 6; ++id) {
    scheduler.Enqueue(NewSequence(id, 10, 20), kStart);
    admitted.push_back(scheduler.Admit(kPlenty, kStart));
    admitted.back()->shards = {{.link = links[id % 2], .shard = WholeModel(kLayout)}};
    admitted.back()->state = id == 4 ? Sequence::State::kPrefilling : Sequence::State::kDecoding;
  }
  const auto decoding = scheduler.Plan(0, kStart).rows;
  ASSERT_EQ(decoding.size(), 5u);
  int changes = 0;
  for (size_t i = 1; i < decoding.size(); ++i) {
    changes += decoding[i]->first_link() != decoding[i - 1]->first_link();
    if (decoding[i]->first_link() == decoding[i - 1]->first_link()) {
      EXPECT_LT(decoding[i - 1]->request_id, decoding[i]->request_id);
    }
  }
  EXPECT_EQ(changes, 1);
}

using std::chrono::milliseconds;
using std::chrono::seconds;
using State = Sequence::State;

TEST(SchedulerTest, AHigherPriorityGoesFirst) {
  Scheduler scheduler({.max_running = 8}, kLayout);
  for (uint64_t id = 1; id <= 3; ++id) {
    auto sequence = NewSequence(id, 10, 20);
    sequence->priority = id == 3 ? 1 : 0;
    scheduler.Enqueue(std::move(sequence), kStart);
  }
  for (const uint64_t id : {3, 1, 2}) EXPECT_EQ(scheduler.Admit(kPlenty, kStart)->request_id, id);
}

TEST(SchedulerTest, PreemptsTheYoungestOfTheLowestPriorityAndNoMoreThanNeeded) {
  Scheduler scheduler({.max_running = 8}, kLayout);
  std::map<uint64_t, Sequence*> running;
  for (const auto& [id, priority] : {std::pair(1, 0), std::pair(2, -1), std::pair(3, -1), std::pair(4, 2)}) {
    auto sequence = NewSequence(id, 10, 20);
    sequence->priority = priority;
    scheduler.Enqueue(std::move(sequence), kStart);
    running[id] = scheduler.Admit(kPlenty, kStart);
    running[id]->state = State::kDecoding;
  }
  auto urgent = NewSequence(5, 10, 20);
  urgent->priority = 1;
  const uint32_t pages = WorkingSet::PagesNeeded(kLayout, urgent->spec, 20);
  scheduler.Enqueue(std::move(urgent), kStart);
  const auto victims_with = [&](uint32_t free_pages) {
    std::vector<uint64_t> ids;
    for (const Sequence* victim :
         scheduler.ChooseVictims({.slot_pages = free_pages, .prefill_bytes = kPlenty.prefill_bytes}, kStart)) {
      ids.push_back(victim->request_id);
    }
    return ids;
  };
  EXPECT_EQ(victims_with(pages), std::vector<uint64_t>());
  EXPECT_EQ(victims_with(0), std::vector<uint64_t>({3}));
  // What does not decode yet would lose its prompt.
  running[3]->state = State::kPrefilling;
  EXPECT_EQ(victims_with(0), std::vector<uint64_t>({2}));
  running[2]->state = State::kPrefilling;
  EXPECT_EQ(victims_with(0), std::vector<uint64_t>({1}));
  running[1]->state = State::kPrefilling;
  EXPECT_EQ(victims_with(0), std::vector<uint64_t>()) << "a sequence of a higher priority stays";
  // Nobody is preempted for a head that lacks prefill memory.
  running[1]->state = State::kDecoding;
  EXPECT_TRUE(scheduler.ChooseVictims({.slot_pages = 0, .prefill_bytes = 1}, kStart).empty());
}

TEST(SchedulerTest, APreemptedSequenceResumesWhenItsRowsAreStored) {
  Scheduler scheduler({.max_running = 1}, kLayout);
  scheduler.Enqueue(NewSequence(1, 10, 20), kStart);
  Sequence* sequence = scheduler.Admit(kPlenty, kStart);
  sequence->state = State::kDecoding;
  sequence->next_position = 12;
  sequence->watermark = 11;
  scheduler.Preempt(*sequence, kStart);
  EXPECT_EQ(sequence->state, State::kWaiting);
  EXPECT_EQ(scheduler.num_running(), 0u);
  EXPECT_EQ(scheduler.Admit(kPlenty, kStart), nullptr);
  sequence->watermark = 12;
  // It needs no prefill memory.
  EXPECT_EQ(scheduler.Admit({.slot_pages = kPlenty.slot_pages, .prefill_bytes = 0}, kStart), sequence);
  EXPECT_TRUE(sequence->resumes);
}

TEST(SchedulerTest, ASequenceGoesOnBeforeItLosesItsPlaceAgainHoweverLongAStepTakes) {
  constexpr milliseconds kBound(30), kStep(100);
  Scheduler scheduler({.max_running = 1, .age_bound = kBound}, kLayout);
  scheduler.Enqueue(NewSequence(1, 10, 20), kStart);
  scheduler.Enqueue(NewSequence(2, 10, 20), kStart);
  std::map<uint64_t, uint32_t> tokens;
  Scheduler::Time now = kStart;
  for (int turn = 0; turn < 20; ++turn) {
    Sequence* running = scheduler.Admit(kPlenty, now);
    ASSERT_NE(running, nullptr);
    running->resumes = false;
    running->state = State::kDecoding;
    now += kStep;
    EXPECT_TRUE(scheduler.ChooseVictims(kPlenty, now).empty()) << "its step is under way";
    now += kStep;
    ++running->decode_steps;  // of a position before its last one, from which selections are kept
    EXPECT_TRUE(scheduler.ChooseVictims(kPlenty, now).empty()) << "it is where it was";
    now += kStep;
    ++running->decode_steps;
    running->generated.push_back(7);
    ++tokens[running->request_id];
    ASSERT_EQ(scheduler.ChooseVictims(kPlenty, now).size(), 1u);
    scheduler.Preempt(*running, now);
  }
  EXPECT_EQ(tokens[1], 10u);
  EXPECT_EQ(tokens[2], 10u);
}

// A rank with places for three, under more urgent requests than it can serve.
TEST(SchedulerTest, PastTheAgeBoundTheWaitIsBounded) {
  constexpr seconds kBound(10);
  constexpr size_t kPlaces = 3;
  Scheduler scheduler({.max_running = kPlaces, .age_bound = kBound}, kLayout);
  std::mt19937 random(7);
  struct Life {
    milliseconds left;
    milliseconds most_wait{0};  // known once it is past the age bound; 0: it is not
  };
  std::map<const Sequence*, Life> lives;
  const auto enqueue = [&](uint64_t id, int priority, milliseconds work, Scheduler::Time now) {
    auto sequence = NewSequence(id, 10, 20);
    sequence->priority = priority;
    lives[sequence.get()] = {work};
    scheduler.Enqueue(std::move(sequence), now);
  };
  // Two of a low priority that need 30 s each; every 800 ms an urgent one of about 3 s: 3.75 places' worth.
  enqueue(1, -1, seconds(30), kStart);
  enqueue(2, -1, seconds(30), kStart);
  size_t patient_left = 2;
  int preempted = 0, past = 0;
  for (milliseconds t(0); t < seconds(1000) && patient_left > 0; t += milliseconds(100)) {
    const Scheduler::Time now = kStart + t;
    if (t.count() % 800 == 0) enqueue(1000 + t.count(), 1, milliseconds(2500 + random() % 1000), now);
    // Among those past the bound nobody overtakes, and each place changes hands at least once a bound.
    std::vector<Sequence*> waiting;
    scheduler.ForEach([&](Sequence& sequence) {
      if (sequence.state == State::kWaiting && now - sequence.waiting_since >= kBound) waiting.push_back(&sequence);
    });
    std::sort(waiting.begin(), waiting.end(), [](const Sequence* x, const Sequence* y) {
      return std::pair(x->waiting_since, x->arrival) < std::pair(y->waiting_since, y->arrival);
    });
    for (size_t ahead = 0; ahead < waiting.size(); ++ahead) {
      milliseconds& most_wait = lives[waiting[ahead]].most_wait;
      if (most_wait.count() > 0) continue;
      most_wait = kBound * (1 + ahead / kPlaces + 1);
      ++past;
    }
    while (true) {
      if (Sequence* sequence = scheduler.Admit(kPlenty, now)) {
        sequence->resumes = false;
        sequence->state = State::kDecoding;
        lives[sequence].most_wait = milliseconds(0);
        continue;
      }
      const auto victims = scheduler.ChooseVictims(kPlenty, now);
      if (victims.empty()) break;
      preempted += static_cast<int>(victims.size());
      for (Sequence* victim : victims) scheduler.Preempt(*victim, now);
    }
    ASSERT_LE(scheduler.num_running(), kPlaces);
    std::vector<const Sequence*> done;
    scheduler.ForEach([&](Sequence& sequence) {
      Life& life = lives[&sequence];
      if (sequence.state == State::kDecoding) {
        sequence.generated.push_back(7);
        if ((life.left -= milliseconds(100)) <= milliseconds(0)) done.push_back(&sequence);
      } else if (life.most_wait.count() > 0) {
        EXPECT_LT(now - sequence.waiting_since, life.most_wait) << "request " << sequence.request_id;
      }
    });
    for (const Sequence* sequence : done) {
      patient_left -= sequence->priority < 0;
      lives.erase(sequence);
      scheduler.Remove(sequence);
    }
  }
  EXPECT_EQ(patient_left, 0u) << "a request of low priority starved";
  EXPECT_GT(preempted, 0);
  EXPECT_GT(past, 10) << "nobody was held up: the test shows nothing";
}

TEST(SchedulerTest, AnIterationNeverExceedsItsTokensAndEveryRowGetsItsTurn) {
  std::mt19937 random(11);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const uint32_t budget = 2 + random() % 40, chunk = 1 + random() % 64, inject = random() % 80;
    Scheduler scheduler({.max_running = 64, .max_batch_tokens = budget, .prefill_chunk_tokens = chunk}, kLayout);
    const size_t decoding = random() % 48, prefilling = random() % 3;
    std::vector<Sequence*> rows;
    for (size_t i = 0; i < decoding + prefilling; ++i) {
      scheduler.Enqueue(NewSequence(i, 10, 20), kStart);
      rows.push_back(scheduler.Admit(kPlenty, kStart));
      rows.back()->state = i < decoding ? State::kDecoding : State::kPrefilling;
    }
    rows.resize(decoding);
    std::map<const Sequence*, int> steps;
    constexpr int kIterations = 200;
    for (int i = 0; i < kIterations; ++i) {
      const auto plan = scheduler.Plan(inject, kStart + milliseconds(i));
      ASSERT_LE(plan.rows.size() + plan.prefill_tokens, budget);
      ASSERT_LE(plan.prefill_tokens, chunk);
      if (prefilling == 0) {
        ASSERT_EQ(plan.prefill_tokens, 0u);
      }
      if (decoding > 0 && i > 0) {
        ASSERT_LE(plan.prefill_tokens, inject);
      }
      if (prefilling > 0 && (inject > 0 || decoding == 0)) {
        ASSERT_GT(plan.prefill_tokens, 0u);
      }
      for (const Sequence* sequence : plan.rows) ++steps[sequence];
    }
    if (decoding == 0) continue;
    int fewest = kIterations, most = 0;
    for (const Sequence* sequence : rows) {
      fewest = std::min(fewest, steps[sequence]);
      most = std::max(most, steps[sequence]);
    }
    EXPECT_GT(fewest, 0);
    EXPECT_LE(most - fewest, 1);
  }
}

}  // namespace
}  // namespace winnow
