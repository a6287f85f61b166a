#include "tools/simulation/scenario/planted.h"

#include <algorithm>

#include "cache_rank/store/sequence_store.h"
#include "inference_rank/service/submit.h"
#include "inference_rank/step/decode_step.h"
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
uint64_t newest_plan = 0;  // of any decode step: what a late delta is taken for

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

// Rows that come after their step was given up go where a later step has its rows.
#define WINNOW_STEP_BEGIN "_ZN6winnow10DecodeStep5BeginEmSt4spanIKPNS_8SequenceELm18446744073709551615EE"
void RealBegin(DecodeStep*, uint64_t, std::span<Sequence* const>) WINNOW_REAL(WINNOW_STEP_BEGIN);
void BeginStep(DecodeStep*, uint64_t, std::span<Sequence* const>) WINNOW_WRAPPED(WINNOW_STEP_BEGIN);
void BeginStep(DecodeStep* step, uint64_t plan, std::span<Sequence* const> rows) {
  simulation::newest_plan = plan;
  RealBegin(step, plan, rows);
}
#define WINNOW_ON_DELTA "_ZN6winnow10DecodeStep7OnDeltaERKNS_9CacheLinkERKNS_13ReceivedFrameE"
absl::Status RealOnDelta(DecodeStep*, const CacheLink&, const ReceivedFrame&) WINNOW_REAL(WINNOW_ON_DELTA);
absl::Status OnDelta(DecodeStep*, const CacheLink&, const ReceivedFrame&) WINNOW_WRAPPED(WINNOW_ON_DELTA);
absl::Status OnDelta(DecodeStep* step, const CacheLink& link, const ReceivedFrame& frame) {
  if (planted != Bug::kSlotReuse) return RealOnDelta(step, link, frame);
  wire::FrameHeader header = frame.header();
  if (header.plan < simulation::newest_plan) header.plan = simulation::newest_plan;
  return RealOnDelta(step, link, ReceivedFrame(header, frame.payload(), nullptr, nullptr));
}

// A request that waits for a rank is not told that one has come.
#define WINNOW_POST_CHANGE "_ZN6winnow17DispatchedRequest20PostMembershipChangeEv"
void RealPostChange(DispatchedRequest*) WINNOW_REAL(WINNOW_POST_CHANGE);
void PostChange(DispatchedRequest*) WINNOW_WRAPPED(WINNOW_POST_CHANGE);
void PostChange(DispatchedRequest* request) {
  if (planted != Bug::kWakeUpLost) RealPostChange(request);
}

// The cache rank claims a position that it has not stored.
#define WINNOW_RESTART_POSITION "_ZNK6winnow14CachedSequence15RestartPositionEj"
uint32_t RealRestartPosition(const CachedSequence*, uint32_t) WINNOW_REAL(WINNOW_RESTART_POSITION);
uint32_t RestartPosition(const CachedSequence*, uint32_t) WINNOW_WRAPPED(WINNOW_RESTART_POSITION);
uint32_t RestartPosition(const CachedSequence* sequence, uint32_t max_restart) {
  const uint32_t position = RealRestartPosition(sequence, max_restart);
  return planted == Bug::kWatermarkOffByOne && position > 0 ? std::min(position + 1, max_restart) : position;
}

}  // namespace winnow
