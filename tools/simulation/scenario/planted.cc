#include "tools/simulation/scenario/planted.h"

#include <algorithm>
#include <chrono>

#include "cache_rank/store/sequence_store.h"
#include "inference_rank/links/shard_calls.h"
#include "inference_rank/memory/slot_pool.h"
#include "inference_rank/service/submit.h"
#include "router/dispatch/dispatched_request.h"

// The linker sends calls of a function to __wrap_ and its name, and calls of __real_ and its name to the function
// (CMakeLists.txt). All of these do what the real one does unless their bug is planted.

namespace winnow {
namespace simulation {
namespace {

enum class Bug { kNone, kEpochNotChecked, kSeedLost, kSlotReuse, kWakeUpLost, kWatermarkOffByOne };
constexpr std::pair<const char*, Bug> kBugs[] = {{"epoch-not-checked", Bug::kEpochNotChecked},
                                                 {"seed-lost-on-re-attach", Bug::kSeedLost},
                                                 {"slot-reuse-on-timeout", Bug::kSlotReuse},
                                                 {"wake-up-lost", Bug::kWakeUpLost},
                                                 {"watermark-off-by-one", Bug::kWatermarkOffByOne}};
Bug planted = Bug::kNone;

struct SlotsInUse {
  const SlotPool* pool = nullptr;
  std::vector<uint32_t> pages;
  std::chrono::steady_clock::time_point since;
};
std::vector<SlotsInUse> slots_in_use;

}  // namespace

std::vector<std::string> PlantedBugs() {
  std::vector<std::string> names;
  for (const auto& [name, bug] : kBugs) names.push_back(name);
  return names;
}

bool Plant(const std::string& name) {
  const auto* const found =
      std::find_if(std::begin(kBugs), std::end(kBugs), [&](const auto& bug) { return bug.first == name; });
  if (found == std::end(kBugs)) return false;
  planted = found->second;
  return true;
}

}  // namespace simulation

using simulation::Bug;
using simulation::planted;

#define WINNOW_WRAPPED(name) asm("__wrap_" name)
#define WINNOW_REAL(name) asm("__real_" name)

// A frame of an earlier holder changes the sequence.
#define WINNOW_FIND_ATTACHED "_ZNK6winnow13SequenceStore12FindAttachedEmjj"
CachedSequence* RealFindAttached(const SequenceStore*, uint64_t, uint32_t, uint32_t) WINNOW_REAL(WINNOW_FIND_ATTACHED);
CachedSequence* FindAttached(const SequenceStore*, uint64_t, uint32_t, uint32_t) WINNOW_WRAPPED(WINNOW_FIND_ATTACHED);
CachedSequence* FindAttached(const SequenceStore* store, uint64_t sequence_id, uint32_t epoch, uint32_t channel) {
  if (planted == Bug::kEpochNotChecked) return store->Find(sequence_id);
  return RealFindAttached(store, sequence_id, epoch, channel);
}

// The seed does not reach the rank that goes on.
#define WINNOW_MAKE_SEQUENCE "_ZN6winnow12MakeSequenceERKNS_2v122DispatchRequest_SubmitERKNS_12SubmitLimitsE"
using Made = absl::StatusOr<std::unique_ptr<Sequence>>;
Made RealMakeSequence(const v1::DispatchRequest::Submit&, const SubmitLimits&) WINNOW_REAL(WINNOW_MAKE_SEQUENCE);
Made MakeSequenceOrBug(const v1::DispatchRequest::Submit&, const SubmitLimits&) WINNOW_WRAPPED(WINNOW_MAKE_SEQUENCE);
Made MakeSequenceOrBug(const v1::DispatchRequest::Submit& submit, const SubmitLimits& limits) {
  Made sequence = RealMakeSequence(submit, limits);
  if (planted == Bug::kSeedLost && sequence.ok() && submit.attach()) (*sequence)->sampling_params.clear_seed();
  return sequence;
}

// Slots that a sequence has had for a second are taken to be free.
#define WINNOW_ALLOCATE "_ZN6winnow8SlotPool8AllocateEj"
#define WINNOW_FREE "_ZN6winnow8SlotPool4FreeERKSt6vectorIjSaIjEE"
using Pages = std::vector<uint32_t>;
absl::StatusOr<Pages> RealAllocate(SlotPool*, uint32_t) WINNOW_REAL(WINNOW_ALLOCATE);
absl::StatusOr<Pages> Allocate(SlotPool*, uint32_t) WINNOW_WRAPPED(WINNOW_ALLOCATE);
absl::StatusOr<Pages> Allocate(SlotPool* pool, uint32_t count) {
  if (planted != Bug::kSlotReuse) return RealAllocate(pool, count);
  const auto now = std::chrono::steady_clock::now();
  for (auto& [owner, pages, since] : simulation::slots_in_use) {
    if (owner == pool && pages.size() >= count && now - since > std::chrono::seconds(1)) {
      return Pages(pages.begin(), pages.begin() + count);
    }
  }
  absl::StatusOr<Pages> pages = RealAllocate(pool, count);
  if (pages.ok()) simulation::slots_in_use.push_back({pool, *pages, now});
  return pages;
}
void RealFree(SlotPool*, const Pages&) WINNOW_REAL(WINNOW_FREE);
void Free(SlotPool*, const Pages&) WINNOW_WRAPPED(WINNOW_FREE);
void Free(SlotPool* pool, const Pages& pages) {
  if (planted == Bug::kSlotReuse) {
    const size_t before = simulation::slots_in_use.size();
    std::erase_if(simulation::slots_in_use,
                  [&](const simulation::SlotsInUse& slots) { return slots.pool == pool && slots.pages == pages; });
    if (simulation::slots_in_use.size() == before) return;  // another sequence's
  }
  RealFree(pool, pages);
}

// A request that waits for a rank is not told that one has come.
#define WINNOW_POST_CHANGE "_ZN6winnow17DispatchedRequest20PostMembershipChangeEv"
void RealPostChange(DispatchedRequest*) WINNOW_REAL(WINNOW_POST_CHANGE);
void PostChange(DispatchedRequest*) WINNOW_WRAPPED(WINNOW_POST_CHANGE);
void PostChange(DispatchedRequest* request) {
  if (planted != Bug::kWakeUpLost) RealPostChange(request);
}

// The rank that goes on believes a position more to be stored than is.
#define WINNOW_ATTACH                                                                   \
  "_ZNK6winnow10ShardCalls6AttachESt4spanIKNS_10ShardPlaceELm18446744073709551615EENS_" \
  "2v121AttachSequenceRequestEPKNS_12TraceContextE"
using Attached = absl::StatusOr<ShardCalls::Attached>;
Attached RealAttach(const ShardCalls*, std::span<const ShardPlace>, v1::AttachSequenceRequest, const TraceContext*)
    WINNOW_REAL(WINNOW_ATTACH);
Attached Attach(const ShardCalls*, std::span<const ShardPlace>, v1::AttachSequenceRequest, const TraceContext*)
    WINNOW_WRAPPED(WINNOW_ATTACH);
Attached Attach(const ShardCalls* calls, std::span<const ShardPlace> places, v1::AttachSequenceRequest request,
                const TraceContext* trace) {
  Attached attached = RealAttach(calls, places, std::move(request), trace);
  if (planted == Bug::kWatermarkOffByOne && attached.ok() && attached->position > 0) ++attached->position;
  return attached;
}

}  // namespace winnow
