#include "inference_rank/scheduler.h"

#include <gtest/gtest.h>

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

constexpr Scheduler::Free kPlenty{.slot_pages = 100000, .prefill_bytes = size_t{1} << 40};

TEST(SchedulerTest, AdmitsInOrderUpToMaxRunning) {
  Scheduler scheduler({.max_running = 2}, kLayout);
  for (uint64_t id = 1; id <= 3; ++id) scheduler.Enqueue(NewSequence(id, 10, 20));
  Sequence* first = scheduler.Admit(kPlenty);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->request_id, 1u);
  EXPECT_EQ(scheduler.Admit(kPlenty)->request_id, 2u);
  EXPECT_EQ(scheduler.Admit(kPlenty), nullptr);
  EXPECT_EQ(scheduler.num_waiting(), 1u);
  scheduler.Remove(first);
  EXPECT_EQ(scheduler.Admit(kPlenty)->request_id, 3u);
}

TEST(SchedulerTest, NothingOvertakesAHeadThatDoesNotFit) {
  Scheduler scheduler({.max_running = 8}, kLayout);
  scheduler.Enqueue(NewSequence(1, 5000, 6000));
  scheduler.Enqueue(NewSequence(2, 10, 20));
  const uint32_t needed = WorkingSet::PagesNeeded(kLayout, NewSequence(1, 5000, 6000)->spec, 6000);
  EXPECT_EQ(scheduler.Admit({.slot_pages = needed - 1, .prefill_bytes = size_t{1} << 40}), nullptr);
  const size_t arena = PrefillArena::BytesNeeded(kLayout, 5000);
  EXPECT_EQ(scheduler.Admit({.slot_pages = needed, .prefill_bytes = arena - 1}), nullptr);
  EXPECT_EQ(scheduler.Admit({.slot_pages = needed, .prefill_bytes = arena})->request_id, 1u);
}

TEST(SchedulerTest, WhatIsHandedOverTakesNoPlace) {
  Scheduler scheduler({.max_running = 1}, kLayout);
  for (uint64_t id = 1; id <= 2; ++id) scheduler.Enqueue(NewSequence(id, 10, 20));
  Sequence* first = scheduler.Admit(kPlenty);
  first->state = Sequence::State::kHandingOver;
  EXPECT_EQ(scheduler.Admit(kPlenty), nullptr);
  first->state = Sequence::State::kHandedOver;
  EXPECT_EQ(scheduler.num_running(), 0u);
  EXPECT_EQ(scheduler.Admit(kPlenty)->request_id, 2u);
  EXPECT_NE(scheduler.Find([](const Sequence& sequence) { return sequence.request_id == 1; }), nullptr);
}

TEST(SchedulerTest, APromptForAnotherRankNeedsNoSlots) {
  Scheduler scheduler({.max_running = 8}, kLayout);
  const Scheduler::Free no_slots{.slot_pages = 0, .prefill_bytes = size_t{1} << 40};
  auto attaches = NewSequence(1, 10, 20);
  attaches->hand_over = attaches->attach = true;  // may have to decode the prompt's last position
  scheduler.Enqueue(std::move(attaches));
  EXPECT_EQ(scheduler.Admit(no_slots), nullptr);
  EXPECT_EQ(scheduler.Admit(kPlenty)->request_id, 1u);
  scheduler.Enqueue(NewSequence(2, 10, 20));
  EXPECT_EQ(scheduler.Admit(no_slots), nullptr);
  EXPECT_EQ(scheduler.Admit(kPlenty)->request_id, 2u);
  auto hands_over = NewSequence(3, 10, 20);
  hands_over->hand_over = true;
  scheduler.Enqueue(std::move(hands_over));
  EXPECT_EQ(scheduler.Admit(no_slots)->request_id, 3u);
}

TEST(SchedulerTest, PrefillsTheOldestAndSkipsWhatHasFailed) {
  Scheduler scheduler({.max_running = 8}, kLayout);
  for (uint64_t id = 1; id <= 2; ++id) scheduler.Enqueue(NewSequence(id, 10, 20));
  Sequence* first = scheduler.Admit(kPlenty);
  Sequence* second = scheduler.Admit(kPlenty);
  EXPECT_EQ(scheduler.NextPrefill(), nullptr);  // not opened yet
  first->state = second->state = Sequence::State::kPrefilling;
  EXPECT_EQ(scheduler.NextPrefill(), first);
  first->Fail(absl::UnavailableError("gone"), true);
  EXPECT_EQ(scheduler.NextPrefill(), second);
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
    scheduler.Enqueue(NewSequence(id, 10, 20));
    admitted.push_back(scheduler.Admit(kPlenty));
    admitted.back()->link = links[id % 2];
    admitted.back()->state = id == 4 ? Sequence::State::kPrefilling : Sequence::State::kDecoding;
  }
  const auto decoding = scheduler.Decoding();
  ASSERT_EQ(decoding.size(), 5u);
  int changes = 0;
  for (size_t i = 1; i < decoding.size(); ++i) {
    changes += decoding[i]->link != decoding[i - 1]->link;
    if (decoding[i]->link == decoding[i - 1]->link) {
      EXPECT_LT(decoding[i - 1]->request_id, decoding[i]->request_id);
    }
  }
  EXPECT_EQ(changes, 1);
}

}  // namespace
}  // namespace winnow
