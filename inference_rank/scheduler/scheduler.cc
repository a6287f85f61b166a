#include "inference_rank/scheduler/scheduler.h"

#include <algorithm>
#include <tuple>

#include "common/base/check.h"

namespace winnow {
namespace {

bool Decodes(const Sequence& sequence) {
  return sequence.state == Sequence::State::kDecoding && sequence.failure.ok() && !sequence.cancelled;
}

// What began on another rank has waited there, for longer than is known here, and does not begin at the end again:
// least of all an answer of which the client has tokens and sees no more. Lower goes first.
enum class Begun { kAnswerOnOtherRank, kPromptOnOtherRank, kHere };

Begun BegunOf(const Sequence& sequence) {
  if (sequence.resumes || !(sequence.attach || sequence.repeats)) return Begun::kHere;
  return sequence.generated.empty() ? Begun::kPromptOnOtherRank : Begun::kAnswerOnOtherRank;
}

}  // namespace

Scheduler::Scheduler(const Limits& limits, const KvLayout& layout)
    : limits_(limits), layout_(layout), working_sets_(limits.age_bound) {
  WINNOW_CHECK(limits.max_batch_tokens >= 2 && limits.prefill_chunk_tokens > 0);
}

void Scheduler::Enqueue(std::unique_ptr<Sequence> sequence, Time now) {
  sequence->arrival = next_arrival_++;
  sequence->waiting_since = now;
  shares_.Arrive(sequence->tenant, sequence->tenant_weight, now);
  waiting_.push_back(std::move(sequence));
}

bool Scheduler::Before(const Sequence& a, const Sequence& b, Time now) const {
  const bool a_past = IsPast(a.waiting_since, now), b_past = IsPast(b.waiting_since, now);
  if (a_past != b_past) return a_past;
  if (a_past) return std::tie(a.waiting_since, a.arrival) < std::tie(b.waiting_since, b.arrival);
  if (a.priority != b.priority) return a.priority > b.priority;
  if (BegunOf(a) != BegunOf(b)) return BegunOf(a) < BegunOf(b);
  return a.arrival < b.arrival;
}

bool Scheduler::TenantBefore(const Sequence& a, const Sequence& b, Time now) const {
  const auto starves = [&](const Sequence& sequence) {
    return IsPast(sequence.waiting_since, now) && IsPast(shares_.last_admitted(sequence.tenant), now);
  };
  const bool a_starves = starves(a), b_starves = starves(b);
  if (a_starves != b_starves) return a_starves;
  if (a_starves) return std::tie(a.waiting_since, a.arrival) < std::tie(b.waiting_since, b.arrival);
  if (a.priority != b.priority) return a.priority > b.priority;
  const double a_served = shares_.served(a.tenant), b_served = shares_.served(b.tenant);
  return a_served != b_served ? a_served < b_served : a.arrival < b.arrival;
}

Scheduler::List::iterator Scheduler::Head(Time now) {
  heads_.clear();
  for (auto entry = waiting_.begin(); entry != waiting_.end(); ++entry) {
    if ((*entry)->state != Sequence::State::kWaiting) continue;  // it waits for something else than its turn
    const auto [first, is_new] = heads_.emplace((*entry)->tenant, entry);
    if (!is_new && Before(**entry, **first->second, now)) first->second = entry;
  }
  auto head = waiting_.end();
  for (const auto& [tenant, first] : heads_) {
    if (head == waiting_.end() || TenantBefore(**first, **head, now)) head = first;
  }
  return head;
}

SlotDemand Scheduler::SlotsNeeded(const Sequence& sequence) const {
  if (!sequence.needs_slots()) return {};
  const SlotPlacement spread = SpreadPlacement(layout_, sequence.spec, sequence.max_positions, sequence.prompt_tokens(),
                                               sequence.slot_order, limits_.slot_tiers);
  return DemandOf(layout_, spread, PagesNeeded(sequence));
}

Sequence* Scheduler::Admit(const Free& free, Time now) {
  const auto head = Head(now);
  if (head == waiting_.end() || num_running() >= limits_.max_running) return nullptr;
  Sequence& sequence = **head;
  const SlotDemand demand = SlotsNeeded(sequence);
  if (!demand.FitsIn(SlotsOf(free), SharedPages(sequence, demand, SlotsOf(free)))) return nullptr;
  if (PrefillBytesNeeded(sequence) > free.prefill_bytes) return nullptr;
  // Rows under way to the cache rank would belong to an attachment that is over.
  if (sequence.resumes && sequence.watermark < sequence.next_position && sequence.failure.ok()) return nullptr;
  const bool past = IsPast(sequence.waiting_since, now);
  if (std::any_of(sequence.places.begin(), sequence.places.end(),
                  [&](const ShardPlace& place) { return working_sets_.IsFull(place.cache_rank.address()); })) {
    if (!past || !IsPast(last_forced_, now)) return nullptr;
    last_forced_ = now;
  }
  sequence.admitted_past_age_bound = past;
  sequence.generated_before_admission = sequence.generated.size();
  sequence.running_since = sequence.turn_since = now;
  sequence.last_chunk = now;
  sequence.share_tag = shares_.served(sequence.tenant);
  shares_.Admitted(sequence.tenant, now);
  if (!sequence.attach && !sequence.resumes) shares_.Charge(sequence.tenant, sequence.prompt_tokens());
  running_.push_back(std::move(*head));
  waiting_.erase(head);
  return running_.back().get();
}

size_t Scheduler::num_running() const {
  return std::count_if(running_.begin(), running_.end(),
                       [](const auto& sequence) { return sequence->state != Sequence::State::kHandedOver; });
}

bool Scheduler::MayPreempt(const Sequence& head, const Sequence& running, Time now) const {
  if (!Decodes(running) || running.held()) return false;  // others fork a held one
  // A step that is under way when a sequence leaves is dropped, and one that resumes may have to compute positions
  // again first. Where that takes longer than the bound, sequences would only change places.
  const bool has_advanced = running.generated.size() > running.generated_before_admission;
  const bool had_its_turn = has_advanced && IsPast(running.running_since, now);
  if (IsPast(head.waiting_since, now) && had_its_turn) return true;
  return running.priority < head.priority && (!running.admitted_past_age_bound || had_its_turn);
}

std::span<Sequence* const> Scheduler::ChooseVictims(const Free& free, Time now) {
  victims_.clear();
  const auto found = Head(now);
  if (found == waiting_.end()) return {};
  const Sequence& head = **found;
  if (PrefillBytesNeeded(head) > free.prefill_bytes) return {};
  for (const auto& sequence : running_) {
    if (MayPreempt(head, *sequence, now)) victims_.push_back(sequence.get());
  }
  std::sort(victims_.begin(), victims_.end(), [](const Sequence* a, const Sequence* b) {
    return std::make_pair(a->priority, ~a->arrival) < std::make_pair(b->priority, ~b->arrival);
  });
  // What victims share with others is given back later or not at all: then more are chosen the next time.
  SlotPages pages = SlotsOf(free);
  size_t taken = 0;
  const SlotDemand demand = SlotsNeeded(head);
  const uint32_t shared = SharedPages(head, demand, pages);
  const auto fits = [&] { return demand.FitsIn(pages, shared) && num_running() - taken < limits_.max_running; };
  while (!fits() && taken < victims_.size()) {
    const Sequence& victim = *victims_[taken++];
    const SlotPages held =
        victim.working_set.has_value() ? victim.working_set->pages_held() : SlotPages{.front = PagesNeeded(victim)};
    pages.front += held.front;
    pages.host += held.host;
  }
  victims_.resize(fits() ? taken : 0);
  return victims_;
}

void Scheduler::Preempt(Sequence& sequence, Time now) {
  WINNOW_CHECK(sequence.state == Sequence::State::kDecoding);
  const auto found =
      std::find_if(running_.begin(), running_.end(), [&](const auto& entry) { return entry.get() == &sequence; });
  WINNOW_CHECK(found != running_.end());
  sequence.state = Sequence::State::kWaiting;
  sequence.resumes = true;
  sequence.parked_since.reset();
  sequence.waiting_since = now;
  waiting_.push_back(std::move(*found));
  running_.erase(found);
}

Scheduler::Iteration Scheduler::Plan(uint32_t max_inject_tokens, Time now) {
  rows_.clear();
  for (const auto& sequence : running_) {
    if (Decodes(*sequence)) rows_.push_back(sequence.get());
  }
  if (limits_.working_set_control) {
    const size_t decoding = rows_.size();
    working_sets_.TakeTurns(rows_, now);
    num_parked_ = decoding - rows_.size();
  }
  std::erase_if(rows_, [](const Sequence* sequence) { return !sequence->ready_to_decode(); });
  const bool prefills = NextPrefill(now) != nullptr;
  uint32_t inject = prefills ? std::min(max_inject_tokens, limits_.prefill_chunk_tokens) : 0;
  if (prefills && rows_.empty()) inject = limits_.prefill_chunk_tokens;
  const uint32_t budget = limits_.max_batch_tokens;
  const uint32_t most_rows = budget - std::min(inject, std::max(1u, budget / 4));
  if (rows_.size() > most_rows) {
    std::stable_sort(rows_.begin(), rows_.end(),
                     [](const Sequence* a, const Sequence* b) { return a->last_turn < b->last_turn; });
    rows_.resize(most_rows);
  }
  for (Sequence* sequence : rows_) {
    sequence->last_turn = next_turn_++;
    shares_.Charge(sequence->tenant, FairShare::kGeneratedTokenCost);
  }
  std::stable_sort(rows_.begin(), rows_.end(), [](const Sequence* a, const Sequence* b) {
    if (a->first_link() != b->first_link()) return std::less<>()(a->first_link(), b->first_link());
    return a->arrival < b->arrival;
  });
  return {.rows = rows_, .prefill_tokens = std::min(inject, budget - static_cast<uint32_t>(rows_.size()))};
}

Sequence* Scheduler::NextPrefill(Time now) const {
  Sequence* next = nullptr;
  const auto before = [&](const Sequence& a, const Sequence& b) {
    const bool a_past = IsPast(a.last_chunk, now), b_past = IsPast(b.last_chunk, now);
    if (a_past != b_past) return a_past;
    if (a_past) return a.last_chunk < b.last_chunk;
    if (a.priority != b.priority) return a.priority > b.priority;
    if (BegunOf(a) != BegunOf(b)) return BegunOf(a) < BegunOf(b);
    return std::tie(a.share_tag, a.arrival) < std::tie(b.share_tag, b.arrival);
  };
  for (const auto& sequence : running_) {
    if (sequence->state != Sequence::State::kPrefilling || !sequence->failure.ok()) continue;
    if (sequence->arena.has_value() && sequence->arena->in_chunk()) return sequence.get();
    if (next == nullptr || before(*sequence, *next)) next = sequence.get();
  }
  return next;
}

std::unique_ptr<Sequence> Scheduler::Remove(const Sequence* sequence) {
  for (auto* list : {&running_, &waiting_}) {
    const auto found =
        std::find_if(list->begin(), list->end(), [&](const auto& entry) { return entry.get() == sequence; });
    if (found == list->end()) continue;
    std::unique_ptr<Sequence> taken = std::move(*found);
    list->erase(found);
    shares_.Leave(taken->tenant);
    return taken;
  }
  WINNOW_CHECK(false);
  return nullptr;
}

void Scheduler::ForEach(const std::function<void(Sequence&)>& visit) {
  for (const auto& sequence : waiting_) visit(*sequence);
  for (const auto& sequence : running_) visit(*sequence);
}

Sequence* Scheduler::Find(const std::function<bool(const Sequence&)>& matches) {
  for (auto* list : {&running_, &waiting_}) {
    for (const auto& sequence : *list) {
      if (matches(*sequence)) return sequence.get();
    }
  }
  return nullptr;
}

}  // namespace winnow
