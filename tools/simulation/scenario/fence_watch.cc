#include "tools/simulation/scenario/fence_watch.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_rank/step/frame_handler.h"
#include "tools/simulation/runtime/runtime.h"

namespace winnow {
namespace simulation {
namespace {

// Opens a private member: the watch stands beside the handler, and must not be a part of it.
template <auto Member>
struct Opened {
  friend auto StoreOf(const FrameHandler& handler) -> const SequenceStore* { return handler.*Member; }
};
auto StoreOf(const FrameHandler& handler) -> const SequenceStore*;

std::string violation;

// The attachment that a part of a frame says to be of.
struct Claim {
  uint64_t sequence_id;
  uint32_t attach_epoch;
};

template <typename Entry>
void AddEntries(const ReceivedFrame& frame, std::vector<Claim>& claims) {
  for (size_t i = 0; i < frame.header().row_count && (i + 1) * sizeof(Entry) <= frame.payload().size(); ++i) {
    Entry entry;
    std::memcpy(&entry, frame.payload().data() + i * sizeof entry, sizeof entry);
    claims.push_back({entry.sequence_id, entry.attach_epoch});
  }
}

std::vector<Claim> ClaimsOf(InferenceLink& link, const ReceivedFrame& frame) {
  std::vector<Claim> claims;
  const wire::FrameHeader& header = frame.header();
  if (header.type == wire::FrameType::kStepPlan) {
    AddEntries<wire::PlanRow>(frame, claims);
  } else if (header.type == wire::FrameType::kStepRows) {
    AddEntries<wire::StepRowEntry>(frame, claims);
  } else if (header.type == wire::FrameType::kLayer) {
    const OpenPlan* const plan = link.FindPlan(header.plan);
    if (plan == nullptr) return claims;
    for (const OpenPlan::Row& row : plan->rows) claims.push_back({row.sequence_id, row.attach_epoch});
  } else if (header.sequence_id != 0) {
    claims.push_back({header.sequence_id, header.attach_epoch});
  }
  return claims;
}

// What frames change of a sequence.
struct Contents {
  std::vector<uint32_t> rows;
  uint64_t plan = 0;
  uint32_t row = 0;
  size_t journal = 0;
  friend bool operator==(const Contents&, const Contents&) = default;
};

Contents ContentsOf(const CachedSequence& sequence) {
  Contents contents{.rows = {},
                    .plan = sequence.planned.plan,
                    .row = sequence.planned.row,
                    .journal = sequence.journal.first_position + sequence.journal.token_ids.size()};
  for (int layer = 0; layer < sequence.layout.num_layers; ++layer) contents.rows.push_back(sequence.kv.rows(layer));
  return contents;
}

}  // namespace

template struct Opened<&FrameHandler::store_>;

const std::string& FenceViolation() {
  return violation;
}

}  // namespace simulation

// As the linker sends it here (CMakeLists.txt).
#define WINNOW_HANDLE "_ZN6winnow12FrameHandler6HandleERNS_13InferenceLinkERKNS_13ReceivedFrameE"
void RealHandle(FrameHandler*, InferenceLink&, const ReceivedFrame&) asm("__real_" WINNOW_HANDLE);
void WatchedHandle(FrameHandler*, InferenceLink&, const ReceivedFrame&) asm("__wrap_" WINNOW_HANDLE);
void WatchedHandle(FrameHandler* handler, InferenceLink& link, const ReceivedFrame& frame) {
  const SequenceStore& store = *simulation::StoreOf(*handler);
  std::vector<std::pair<simulation::Claim, simulation::Contents>> others;
  for (const simulation::Claim& claim : simulation::ClaimsOf(link, frame)) {
    const CachedSequence* const sequence = store.Find(claim.sequence_id);
    if (sequence == nullptr) continue;
    if (sequence->channel == link.id && sequence->attach_epoch == claim.attach_epoch) continue;
    others.emplace_back(claim, simulation::ContentsOf(*sequence));
  }
  RealHandle(handler, link, frame);
  for (const auto& [claim, before] : others) {
    const CachedSequence* const sequence = store.Find(claim.sequence_id);
    if (sequence != nullptr && simulation::ContentsOf(*sequence) == before) continue;
    if (!simulation::violation.empty()) return;
    simulation::violation =
        absl::StrCat("a frame of ", link.rank, " at epoch ", claim.attach_epoch, " has changed sequence ",
                     claim.sequence_id, sequence == nullptr ? "" : absl::StrCat(" at epoch ", sequence->attach_epoch));
    simulation::Runtime::current()->Trace("check", "VIOLATION " + simulation::violation);
  }
}

}  // namespace winnow
