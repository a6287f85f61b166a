#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "inference_rank/memory/prefill_mode.h"
#include "inference_rank/scheduler/fair_share.h"
#include "inference_rank/scheduler/working_set_control.h"
#include "inference_rank/sequence/sequence.h"

namespace winnow {

// Which sequence does what next: host logic without I/O, and without a clock of its own (callers say what time it is).
//
// Admission takes the head of the waiting ones. Of one tenant's: by priority, then answers begun elsewhere, then
// prompts begun elsewhere, then by age;
// whoever has waited for `age_bound` goes before all others, the longest wait first. Of the tenants' first ones: by
// priority, then that of the tenant that has been served least (FairShare); one past the age bound, of a tenant of
// which none was admitted for as long, goes before all others. The head waits for its resources and nothing overtakes
// it. Where it lacks slots or a place among the running, sequences that decode may be preempted for it: those of a
// lower priority at once, and for a head past the age bound any that has run for that long and has generated a token
// meanwhile, so that answers go on however short the bound is. A head that was admitted past the bound is safe for as
// long. Where sequences are parked for want of fast memory on the head's cache rank, the
// head waits, too: it would only make more of them wait. One head past the age bound is admitted there each bound all
// the same. So each place changes hands once a bound (and what is left of a prefill) while somebody is past it, and
// with R places and n before it a sequence past the bound waits at most n / R + 1 more bounds, whatever arrives.
class Scheduler {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Limits {
    uint32_t max_running = 64;
    PrefillSizing prefill = {};
    int slot_parts = 1;         // memories that slots lie in, see SlotPool
    SlotTiers slot_tiers = {};  // where there are slots in host memory behind those of a GPU
    // Decode rows and prefill tokens of one iteration together; at least 2.
    uint32_t max_batch_tokens = std::numeric_limits<uint32_t>::max();
    uint32_t prefill_chunk_tokens = 512;     // the most prefill tokens of one iteration
    std::chrono::microseconds age_bound{0};  // 0: none
    // Sequences decode while their working sets fit fast memory (WorkingSetControl); without it all of them do.
    bool working_set_control = true;
  };
  struct Free {
    uint32_t slot_pages = 0;
    uint32_t host_slot_pages = 0;  // behind them
    size_t prefill_bytes = 0;
  };
  struct Iteration {
    // Sequences that take a decode step, those of one cache rank side by side. Valid until the next plan.
    std::span<Sequence* const> rows;
    uint32_t prefill_tokens = 0;
  };

  Scheduler(const Limits& limits, const KvLayout& layout);

  // Running sequences have some of the slot pages that a waiting one needs: how many is what `shared_pages` says.
  void ShareSlots(std::function<uint32_t(const Sequence&)> shared_pages) { shared_pages_ = std::move(shared_pages); }

  void Enqueue(std::unique_ptr<Sequence> sequence, Time now);

  // The head of the queue when it fits, moved to the running ones (state unchanged); null otherwise.
  Sequence* Admit(const Free& free, Time now);
  // The sequences whose preemption lets the head fit: lowest priority and youngest first, no more than it takes. Empty
  // when it fits already, or would not even so. Valid until the next call.
  std::span<Sequence* const> ChooseVictims(const Free& free, Time now);
  // Moves one that decodes back to the waiting ones, to be resumed: its place in the order of arrival stays.
  void Preempt(Sequence& sequence, Time now);

  // Beside decode rows at most `max_inject_tokens` prefill tokens, without rows a chunk. A quarter of the token budget
  // is kept for prefill tokens that may be injected. Rows that the budget leaves out come first in the next plan.
  Iteration Plan(uint32_t max_inject_tokens, Time now);
  // The sequence whose prompt goes on next, or null: one in the middle of a chunk; otherwise that which has waited
  // longest since its last chunk if that is beyond the age bound; otherwise of the highest priority one that began on
  // another rank; otherwise that whose tenant had been served least at its admission; otherwise the oldest.
  Sequence* NextPrefill(Time now) const;

  // Admission charges the sequence's tenant for the whole prompt: so much of it was cached.
  void CreditCachedTokens(const Sequence& sequence, uint32_t tokens) { shares_.Charge(sequence.tenant, -1.0 * tokens); }

  // Takes a sequence out. It must be one of ours.
  std::unique_ptr<Sequence> Remove(const Sequence* sequence);
  // Calls `visit` for every sequence, waiting ones included; it may not add or remove any.
  void ForEach(const std::function<void(Sequence&)>& visit);
  Sequence* Find(const std::function<bool(const Sequence&)>& matches);

  size_t num_waiting() const { return waiting_.size(); }
  // Without those that were handed over: they only wait to be taken.
  size_t num_running() const;
  // That decode and take no steps, for want of fast memory; as of the last plan.
  size_t num_parked() const { return num_parked_; }

 private:
  using List = std::vector<std::unique_ptr<Sequence>>;
  bool IsPast(Time since, Time now) const { return limits_.age_bound.count() > 0 && now - since >= limits_.age_bound; }
  List::iterator Head(Time now);
  // Of one tenant; and of the first ones of two.
  bool Before(const Sequence& a, const Sequence& b, Time now) const;
  bool TenantBefore(const Sequence& a, const Sequence& b, Time now) const;
  bool MayPreempt(const Sequence& head, const Sequence& running, Time now) const;
  uint32_t PagesNeeded(const Sequence& sequence) const {
    if (!sequence.needs_slots()) return 0;
    return WorkingSet::PagesNeeded(layout_, sequence.spec, sequence.max_positions, limits_.slot_parts,
                                   sequence.slot_order);
  }
  // Of a waiting one.
  SlotDemand SlotsNeeded(const Sequence& sequence) const;
  // Pages that others have of those that it needs; not looked for where it fits without.
  uint32_t SharedPages(const Sequence& sequence, const SlotDemand& demand, const SlotPages& free) const {
    return shared_pages_ && !demand.FitsIn(free, 0) ? shared_pages_(sequence) : 0;
  }
  static SlotPages SlotsOf(const Free& free) { return {.front = free.slot_pages, .host = free.host_slot_pages}; }
  size_t PrefillBytesNeeded(const Sequence& sequence) const {
    // An attach may have to prefill again, when a part of the prompt was lost. One that resumes was never detached.
    return sequence.resumes && !sequence.lacks_past() ? 0
                                                      : limits_.prefill.BytesNeeded(layout_, sequence.prompt_tokens());
  }

  const Limits limits_;
  const KvLayout layout_;
  std::function<uint32_t(const Sequence&)> shared_pages_;  // null: none
  List waiting_;
  List running_;
  FairShare shares_;
  WorkingSetControl working_sets_;
  size_t num_parked_ = 0;
  Time last_forced_{};  // when a sequence was admitted to a full cache rank
  std::vector<Sequence*> rows_;
  std::vector<Sequence*> victims_;
  std::unordered_map<std::string_view, List::iterator> heads_;  // by tenant, while the head is looked for
  uint64_t next_arrival_ = 1;
  uint64_t next_turn_ = 1;
};

}  // namespace winnow
