// Decode steps that run from GPU to GPU: sequences take batch rows (model/peer_step_link.h), and leave
// them. When their slots may have another owner is modelled and checked in proof/slots.pml.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/selection/mass_positions.h"
#include "inference_rank/engine/engine.h"

namespace winnow {
namespace {

using SteadyClock = std::chrono::steady_clock;
// Longer than any wait of a peer link's other side, which ends all of what it has begun.
constexpr auto kQuarantine = 2 * std::chrono::microseconds(wire::kPeerTimeoutOfCacheUs);

}  // namespace

PeerStepGroup* Engine::FindPeerGroup(const Sequence& sequence) {
  for (const ShardLink& shard : sequence.shards) {
    const PeerStepLink* const peer_link = shard.link->peer_link();
    if (peer_link == nullptr || !peer_link->status().ok()) return nullptr;
    if (!(peer_link->shape().spec == sequence.spec) || peer_link->shape().shard != shard.shard) return nullptr;
  }
  std::erase_if(peer_groups_, [](const auto& group) { return group->ended(); });
  std::shared_ptr<PeerStepGroup> group;
  for (const std::shared_ptr<PeerStepGroup>& candidate : peer_groups_) {
    if (candidate->Admits(sequence.shards)) group = candidate;
    // What has joined others stays with them.
    if (group == nullptr && candidate->SharesBatch(sequence.shards)) return nullptr;
  }
  if (group == nullptr) {
    const absl::StatusOr<std::shared_ptr<PeerStepGroup>> formed = PeerStepGroup::Form(sequence.shards);
    if (!formed.ok()) {
      for (const ShardLink& shard : sequence.shards) {
        links_.DistrustPeer(*shard.link, formed.status());
        shard.link->set_peer_link(nullptr);
      }
      return nullptr;
    }
    group = peer_groups_.emplace_back(*formed);
  }
  for (const ShardLink& shard : sequence.shards) shard.link->set_peer_group(group);
  return group.get();
}

// Of the rows that are this cache rank's.
absl::Status Engine::PostPeerPlan(CacheLink& link, std::span<Sequence* const> rows, uint64_t plan, uint32_t step) {
  const size_t count =
      std::count_if(rows.begin(), rows.end(), [&](const Sequence* row) { return row->FindShard(link) != nullptr; });
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer,
                          AwaitSendBuffer(*transport_, link, count * sizeof(wire::PlanRow), options_.waits));
  auto* plan_row = reinterpret_cast<wire::PlanRow*>(buffer.payload().data());
  for (const Sequence* row : rows) {
    const Sequence& sequence = *row;
    if (sequence.FindShard(link) == nullptr) continue;
    const ShardLink& shard = *sequence.FindShard(link);
    *plan_row++ = {.sequence_id = sequence.sequence_id,
                   .attach_epoch = shard.attach_epoch,
                   .position = sequence.next_position,
                   .token_id = sequence.token_at(sequence.next_position),
                   .pool_slots = sequence.working_set->pool_slots(shard.shard),
                   .grant_generation = 1,
                   .flags = static_cast<uint32_t>(sequence.batch_row),
                   .first_kv_head = static_cast<uint16_t>(shard.shard.first_kv_head),
                   .num_kv_heads = static_cast<uint16_t>(shard.shard.num_kv_heads),
                   .first_layer = static_cast<uint16_t>(shard.shard.first_layer),
                   .num_layers = static_cast<uint16_t>(shard.shard.num_layers)};
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kStepPlan;
  header.flags = wire::kPlanByPeer;
  header.plan = plan;
  header.apply_position = step;
  header.row_count = static_cast<uint32_t>(count);
  return link.channel()->Post(header, std::move(buffer));
}

// The engine waits for the GPU then, which waits for the cache rank's: no frame may wait for the engine.
absl::Status Engine::AwaitLeaving(CacheLink& link) {
  const auto give_up = SteadyClock::now() + options_.waits.timeout;
  transport_->Progress();
  while (link.channel()->sending()) {
    if (!link.alive()) return absl::UnavailableError("the cache rank is gone");
    if (SteadyClock::now() > give_up) return absl::DeadlineExceededError("the cache rank takes no frames");
    link.MarkAwaited();
    transport_->Wait(std::chrono::microseconds(200), std::chrono::microseconds(200));
  }
  return link.channel()->failed();
}

// Those of rows that are in the batch: one whose sequence has failed otherwise takes part in a step that was announced.
std::vector<CacheLink*> Engine::LinksOf(std::span<Sequence* const> rows) const {
  std::vector<CacheLink*> links;
  for (const Sequence* sequence : rows) {
    if (sequence->batch_row < 0) continue;
    for (const ShardLink& shard : sequence->shards) {
      if (std::find(links.begin(), links.end(), shard.link.get()) == links.end()) links.push_back(shard.link.get());
    }
  }
  return links;
}

// Tells the cache ranks; where one cannot be told, its rows fail, and the step is of those that are left.
void Engine::AnnouncePeerStep(PeerStepGroup& group, std::span<Sequence* const> rows) {
  const uint64_t plan = next_plan_++;
  for (CacheLink* link : LinksOf(rows)) {
    absl::Status told = link->peer_link()->status();
    if (told.ok()) told = PostPeerPlan(*link, rows, plan, group.next_step());
    if (!told.ok()) FailPeerLink(group, *link, told);
  }
  for (CacheLink* link : LinksOf(rows)) {
    if (const absl::Status left = AwaitLeaving(*link); !left.ok()) FailPeerLink(group, *link, left);
  }
}

void Engine::RunPeerStep(PeerStepGroup& group, std::span<Sequence*> rows) {
  const TimelineSpan span(metrics_.timeline, Span::kStep, kNoLayer, next_plan_, static_cast<uint32_t>(rows.size()));
  AnnouncePeerStep(group, rows);
  const auto end = std::remove_if(rows.begin(), rows.end(), [](const Sequence* row) { return row->batch_row < 0; });
  rows = {rows.begin(), end};
  if (rows.empty()) return;
  peer_rows_.clear();
  for (const Sequence* sequence : rows) {
    peer_rows_.push_back(
        {.batch_row = sequence->batch_row,
         .token_id = sequence->token_at(sequence->next_position),
         .position = sequence->next_position,
         .draw = DrawFor(*sequence, sequence->next_position),
         .takes_mass = MeasuresMass(sequence->spec, sequence->next_position - 1, sequence->prompt_tokens())});
  }
  const absl::Status decoded = group.Decode(peer_rows_);
  transport_->Progress();  // a row may have been refused
  FailPeerLinksOf(group, rows, decoded);
  if (std::all_of(rows.begin(), rows.end(), [](const Sequence* row) { return !row->failure.ok(); })) return;
  ++metrics_.decode_steps;
  ++metrics_.peer_steps;
  ++metrics_.progress;
  for (size_t row = 0; row < rows.size(); ++row) {
    Sequence& sequence = *rows[row];
    if (!sequence.failure.ok()) continue;
    for (size_t i = 0; i < sequence.shards.size(); ++i) {
      const KvShard& shard = sequence.shards[i].shard;
      TakeMasses(sequence, shard, group.batch(i).captured_mass(row));
      CountRows(sequence, shard, group.batch(i).counts(row));
    }
    CountDenseLists(sequence);
    ++sequence.next_position;
    ++sequence.decode_steps;
    if (sequence.next_position != sequence.known_tokens()) continue;
    if (peer_rows_[row].draw.has_value()) {
      TakeToken(sequence, group.batch(0).drawn_token(row), {});
    } else {
      TakeToken(sequence, std::nullopt, group.batch(0).logits(row));
    }
  }
}

// After a step: the peer links that are over, and all of them where a GPU has failed.
void Engine::FailPeerLinksOf(PeerStepGroup& group, std::span<Sequence* const> rows, const absl::Status& decoded) {
  const std::vector<CacheLink*> links = LinksOf(rows);
  const auto status_of = [&](CacheLink* link) { return decoded.ok() ? link->peer_link()->status() : decoded; };
  // Of a group those that failed first, rather than those that were ended then.
  for (const bool aborted : {false, true}) {
    for (CacheLink* link : links) {
      const absl::Status status = status_of(link);
      if (!status.ok() && absl::IsAborted(status) == aborted) FailPeerLink(group, *link, status);
    }
  }
}

void Engine::TakeMasses(Sequence& sequence, const KvShard& shard, std::span<const float> masses) {
  for (size_t list = 0; list < masses.size(); ++list) {
    if (std::isnan(masses[list])) continue;
    sequence.mass.Add(masses[list]);
    metrics_.captured_mass[shard.first_layer + static_cast<int>(list) / shard.num_kv_heads].Observe(masses[list]);
  }
}

// Lists that attend to everything hold all of it.
void Engine::CountDenseLists(Sequence& sequence) {
  const WorkingSet& set = *sequence.working_set;
  const bool are_alike = sequence.spec.head_budgets.empty();
  const size_t num_lists = layout_.num_lists();
  uint64_t dense = 0;
  for (size_t list = 0; list < (are_alike ? 1 : num_lists); ++list) {
    dense += set.AttendsEverything(list, sequence.next_position);
  }
  if (are_alike) dense *= num_lists;
  if (dense > 0) sequence.mass.Add(1.0, dense);
}

// As by frames, lists that attend to everything look nothing up; over a peer link their rows travel once all the same.
void Engine::CountRows(Sequence& sequence, const KvShard& shard, std::span<const PeerStepBatch::ListCounts> counts) {
  uint64_t lookups = 0, misses = 0, pushed = 0;
  for (size_t list = 0; list < counts.size(); ++list) {
    pushed += counts[list].pushed;
    const int layer = shard.first_layer + static_cast<int>(list) / shard.num_kv_heads;
    const int head = shard.first_kv_head + static_cast<int>(list) % shard.num_kv_heads;
    if (sequence.working_set->AttendsEverything(layout_.list(layer, head), sequence.next_position)) continue;
    lookups += counts[list].selected;
    misses += counts[list].pushed;
  }
  sequence.selection_lookups += lookups;
  sequence.selection_hits += lookups - misses;
  sequence.streamed_rows += pushed;
  sequence.streamed_bytes += pushed * layout_.row_bytes();
  metrics_.selection_lookups += lookups;
  metrics_.selection_hits += lookups - misses;
  metrics_.streamed_rows += pushed;
}

// Its sequences are attached again, and go by frames. Where several GPUs hold the model, those are all of the group,
// and only those of the failed peer link's cache rank go by frames.
void Engine::FailPeerLink(PeerStepGroup& group, CacheLink& failed, const absl::Status& why) {
  if (group.ended() || (group.num_gpus() > 1 && group.End())) return;
  ++metrics_.peer_links_failed;
  const auto until = SteadyClock::now() + kQuarantine;
  scheduler_.ForEach([&](Sequence& sequence) {
    if (sequence.peer_group() != &group || (group.num_gpus() == 1 && sequence.FindShard(failed) == nullptr)) return;
    sequence.Fail(absl::UnavailableError(absl::StrCat("the peer link to the cache rank has failed: ", why.message())),
                  /*can_retry=*/true);
    if (sequence.batch_row >= 0) {
      quarantine_.push_back({.until = until,
                             .working_set = std::exchange(sequence.working_set, std::nullopt),
                             .group = sequence.shards.front().link->peer_group(),
                             .batch_row = sequence.batch_row,
                             .sequence_id = sequence.sequence_id});
    }
    sequence.working_set.reset();
    sequence.peer_state = Sequence::PeerState::kNone;
    sequence.batch_row = -1;
  });
  links_.DistrustPeer(failed, why);
  const auto close = [](CacheLink& link) {
    link.channel()->Close();
    link.MarkDead();
  };
  close(failed);
  for (const std::weak_ptr<CacheLink>& member : group.links()) {
    const std::shared_ptr<CacheLink> link = member.lock();
    if (link != nullptr && link.get() != &failed) close(*link);
  }
}

void Engine::AskForBatchRows() {
  const auto now = SteadyClock::now();
  while (!quarantine_.empty() && quarantine_.front().until < now) {
    const Quarantined& first = quarantine_.front();
    first.group->batch_rows().Free(first.batch_row, first.sequence_id);
    quarantine_.pop_front();
  }
  scheduler_.ForEach([&](Sequence& sequence) {
    if (sequence.peer_state != Sequence::PeerState::kWanted || !sequence.failure.ok()) return;
    if (!AskForBatchRow(sequence).ok()) LeavePeerBatch(sequence);
  });
}

absl::Status Engine::AskForBatchRow(Sequence& sequence) {
  PeerStepGroup& group = *sequence.peer_group();
  sequence.batch_row = group.batch_rows().Take(sequence.sequence_id);
  if (sequence.batch_row < 0) return absl::ResourceExhaustedError("all batch rows are taken");
  // Before the first frame: answers may come while others wait for send window.
  sequence.row_answers_due = sequence.shards.size();
  sequence.peer_state = Sequence::PeerState::kAsked;
  for (size_t i = 0; i < sequence.shards.size(); ++i) {
    const ShardLink& shard = sequence.shards[i];
    const std::vector<uint32_t> pages = sequence.working_set->PagesOfLists(shard.shard, group.shape().pages_per_list);
    const size_t bytes = pages.size() * sizeof(uint32_t);
    WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, AwaitSendBuffer(*transport_, *shard.link, bytes, options_.waits));
    if (sequence.peer_state != Sequence::PeerState::kAsked) return absl::OkStatus();  // one has refused meanwhile
    std::memcpy(buffer.payload().data(), pages.data(), bytes);
    wire::FrameHeader header{};
    header.type = wire::FrameType::kBatchRow;
    header.sequence_id = sequence.sequence_id;
    header.attach_epoch = shard.attach_epoch;
    header.apply_position = sequence.next_position;
    header.row_count = static_cast<uint32_t>(sequence.batch_row);
    WINNOW_RETURN_IF_ERROR(shard.link->channel()->Post(header, std::move(buffer)));
    group.batch(i).AssignRow(sequence.batch_row, *shard.link->peer_link(), pages);
  }
  return absl::OkStatus();
}

void Engine::OnBatchRowAnswer(const CacheLink& link, Sequence& sequence, const wire::FrameHeader& header) {
  const ShardLink* const shard = sequence.FindShard(link);
  const bool current = sequence.peer_state == Sequence::PeerState::kAsked && shard != nullptr &&
                       header.attach_epoch == shard->attach_epoch &&
                       header.row_count == static_cast<uint32_t>(sequence.batch_row);
  if (!current) {
    ++metrics_.stale_frames;
  } else if ((header.flags & wire::kBatchRowGranted) == 0) {
    LeavePeerBatch(sequence);
  } else if (--sequence.row_answers_due == 0) {
    sequence.peer_state = Sequence::PeerState::kInBatch;
  }
}

void Engine::LeavePeerBatch(Sequence& sequence) {
  if (sequence.batch_row >= 0) sequence.peer_group()->batch_rows().Free(sequence.batch_row, sequence.sequence_id);
  sequence.batch_row = -1;
  sequence.peer_state = Sequence::PeerState::kNone;
}

}  // namespace winnow
