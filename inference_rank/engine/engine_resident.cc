// Rows that stay in the slots of a rank whose steps run over them: of prompts, for whoever begins with them, and of
// sequences that were preempted, for themselves.
//
// The cache ranks say what a sequence has: of a new one rows up to their cached prefix are taken, and those behind it
// are computed, and sent there, whether they are resident or not; one that is preempted resumes behind what they have.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "inference_rank/engine/engine.h"
#include "inference_rank/sequence/sequence_spans.h"
#include "model/head_parts.h"

namespace winnow {
namespace {

using State = Sequence::State;

// Tokens whose rows the same prompt has in another request, to the bit. The prompt's last position goes through the
// last layer alone, and is computed again by whoever goes on behind it. Of streaming heads cache ranks keep the newest
// rows, so that a sequence that was preempted may have no others.
uint32_t SharedTokens(const Sequence& sequence) {
  const std::vector<uint32_t>& budgets = sequence.spec.head_budgets;
  const bool streams = std::find(budgets.begin(), budgets.end(), 0u) != budgets.end();
  return streams && !IsDense(sequence.spec) ? 0 : sequence.prompt_tokens() - 1;
}

std::vector<uint32_t> TokensBelow(const Sequence& sequence, uint32_t end) {
  std::vector<uint32_t> tokens;
  tokens.reserve(end);
  for (uint32_t position = 0; position < end; ++position) tokens.push_back(sequence.token_at(position));
  return tokens;
}

}  // namespace

uint32_t Engine::KeptEnd(const Sequence& sequence) const {
  return sequence.lacks_past() ? SharedTokens(sequence) : sequence.next_position;
}

bool Engine::MayShareRows(const Sequence& sequence) const {
  return prefixes_.has_value() && sequence.working_set.has_value() && sequence.working_set->is_by_position();
}

absl::Status Engine::TakeSlots(Sequence& sequence) {
  ResidentPrefixes::Lease prefix = FindResident(sequence);
  const SlotPlacement spread = SpreadPlacement(layout_, sequence.spec, sequence.max_positions, sequence.prompt_tokens(),
                                               sequence.slot_order, options_.limits.slot_tiers);
  // Whoever reads all rows does better without those in host memory, which come from the cache rank once more.
  const uint32_t all_pages =
      WorkingSet::PagesNeeded(layout_, sequence.spec, sequence.max_positions, slots_.num_parts(), sequence.slot_order);
  const bool goes_in_front = spread.host_columns() == 0 && all_pages <= FreeSlotPages(SlotPlace::kFront);
  if (prefix.has_host_pages() && goes_in_front && !sequence.resumes) prefix = ResidentPrefixes::Lease();
  const std::optional<SlotPlacement> placement = PlaceSlots(all_pages, prefix, spread);
  WINNOW_ASSIGN_OR_RETURN(
      WorkingSet set, WorkingSet::Create(slots_, layout_, sequence.spec, sequence.max_positions,
                                         sequence.prompt_tokens(), sequence.slot_order, std::move(prefix), placement));
  sequence.working_set.emplace(std::move(set));
  return absl::OkStatus();
}

// In front where all of its own rows find room there beside what stages others, else as `spread` says, else in front
// all the same, and else, as what is idle may lie in the wrong memory, wherever pages are: rows are then read where
// they lie. Idle rows make room first.
std::optional<SlotPlacement> Engine::PlaceSlots(uint32_t pages, const ResidentPrefixes::Lease& prefix,
                                                const SlotPlacement& spread) {
  const auto lists = static_cast<uint32_t>(ListsOfPart(layout_, slots_.num_parts())), shared = prefix.num_columns();
  const uint32_t own = pages - lists * shared;
  const auto free = [&] {
    return SlotPages{.front = FreeSlotPages(SlotPlace::kFront), .host = FreeSlotPages(SlotPlace::kHostBehindGpu)};
  };
  const auto take = [&](const SlotPages& wanted) {
    if (!free().Hold(wanted)) return false;
    if (!prefixes_.has_value()) return true;
    prefixes_->MakeRoom(wanted.front, SlotPlace::kFront);
    prefixes_->MakeRoom(wanted.host, SlotPlace::kHostBehindGpu);
    return slots_.free_pages(SlotPlace::kFront) >= wanted.front &&
           slots_.free_pages(SlotPlace::kHostBehindGpu) >= wanted.host;
  };
  SlotPlacement in_front;
  if (prefix.has_host_pages()) in_front.staging_pages = spread.staging_pages;
  const SlotPages all_in_front{.front = own + lists * in_front.staging_pages};
  if (DemandOf(layout_, spread, pages).LeavesRoomToStage(free()) && take(all_in_front)) return in_front;
  const uint32_t begin = std::max(spread.host_begin, shared), end = std::max(spread.host_end, begin);
  if (spread.host_columns() > 0 &&
      take({.front = own - lists * (end - begin) + lists * spread.staging_pages, .host = lists * (end - begin)})) {
    return spread;
  }
  if (take(all_in_front)) return in_front;
  const uint32_t front = std::min(own, FreeSlotPages(SlotPlace::kFront));
  take({.front = front, .host = own - front});
  return std::nullopt;
}

uint32_t Engine::IndexOf(const Sequence& sequence) const {
  return sequence.selects_in_place() ? options_.step_client->IndexOf(sequence.spec) : 0;
}

std::optional<ResidentPrefixes::Key> Engine::ResidentKey(const Sequence& sequence,
                                                         std::vector<uint32_t>& tokens) const {
  const bool by_position = sequence.slot_order == SlotOrder::kByPosition || IsDense(sequence.spec);
  if (!prefixes_.has_value() || !by_position) return std::nullopt;
  // What it has of its own is that of positions which it does not compute again.
  if (!sequence.resumes && sequence.skips_prefix_cache) return std::nullopt;
  tokens = TokensBelow(sequence, sequence.resumes ? KeptEnd(sequence) : SharedTokens(sequence));
  return ResidentPrefixes::Key{.salt = PrefixSaltOf(sequence),
                               .tokens = tokens,
                               .shared_tokens = SharedTokens(sequence),
                               .owner = sequence.sequence_id,
                               .index = IndexOf(sequence)};
}

ResidentPrefixes::Lease Engine::FindResident(const Sequence& sequence) {
  std::vector<uint32_t> tokens;
  const std::optional<ResidentPrefixes::Key> key = ResidentKey(sequence, tokens);
  return key.has_value() ? prefixes_->Find(*key) : ResidentPrefixes::Lease();
}

uint32_t Engine::SharedPages(const Sequence& sequence) const {
  if (prefixes_->num_pages() == prefixes_->idle_pages()) return 0;
  std::vector<uint32_t> tokens;
  const std::optional<ResidentPrefixes::Key> key = ResidentKey(sequence, tokens);
  return key.has_value() ? prefixes_->LeasedPages(*key) : 0;
}

// Its own rows in front are better than another's in host memory that it could not stage.
bool Engine::MayShare(const WorkingSet& set, const ResidentPrefixes::Lease& rows) const {
  return !rows.has_host_pages() || !set.staging_pages().empty() || set.pages_held().host > 0;
}

void Engine::ShareResident(Sequence& sequence) {
  ResidentPrefixes::Lease rows = FindResident(sequence);
  if (MayShare(*sequence.working_set, rows)) sequence.working_set->Share(std::move(rows));
}

void Engine::KeepRows(Sequence& sequence, uint32_t end) {
  WorkingSet& set = *sequence.working_set;
  const std::vector<uint32_t> tokens = TokensBelow(sequence, end);
  const ResidentPrefixes::Key key{.salt = PrefixSaltOf(sequence),
                                  .tokens = tokens,
                                  .shared_tokens = SharedTokens(sequence),
                                  .owner = sequence.sequence_id,
                                  .index = IndexOf(sequence),
                                  .is_indexed = set.is_indexed()};
  if (!MayShare(set, prefixes_->Find(key))) return;
  set.Share(prefixes_->Insert(key, [&](size_t list, uint32_t column) { return set.PageOf(list, column); }));
}

uint32_t Engine::ResidentPrefixEnd(const Sequence& sequence) const {
  if (!sequence.working_set.has_value() || sequence.remote_prefix.has_value()) return 0;
  return std::min(sequence.working_set->shared_positions(), sequence.stored_tokens);
}

void Engine::CountResident(uint32_t positions) {
  if (positions == 0) return;
  ++metrics_.resident_prefix_hits;
  metrics_.resident_prefix_tokens += positions;
}

// It has stayed attached since it was preempted, or forked.
void Engine::RefillInPlace(Sequence& sequence) {
  sequence.resumes = false;
  if (!std::exchange(sequence.forked, false)) ++metrics_.resumed_sequences;
  if (sequence.spans) {
    sequence.spans->Opening();
    sequence.spans->Opened(/*cached_tokens=*/0, /*computes_prompt=*/false);
  }
  BeginSampling(sequence);
  // It was preempted between its last token and the word that it is over.
  if (const auto end = EndOf(sequence)) return FinishSequence(sequence, *end);
  const uint32_t resident = sequence.working_set->shared_positions();
  WINNOW_CHECK(resident <= sequence.next_position);
  CountResident(resident);
  sequence.state = State::kRefilling;
  sequence.refills_due = sequence.shards.size();
  PullRows(sequence, 0, layout_.num_layers, {.first = resident, .end = sequence.next_position});
}

}  // namespace winnow
