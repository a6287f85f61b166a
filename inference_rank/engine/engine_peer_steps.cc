// Decode steps that run from GPU to GPU: sequences take batch rows (model/peer_step_link.h), and leave
// them. When their slots may have another owner is modelled and checked in proof/slots.pml.
//
// A step is announced and launched before the tokens of the one under way have come (StepsUnderWay), so that neither
// GPU waits for a host. A sequence that has ended stays until the step that has a row too many of it has ended: the
// cache rank's GPU writes into its slots until then.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/check.h"
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
                   .position = sequence.next_step_position(),
                   .token_id = sequence.token_at(sequence.next_step_position() - 1),
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

bool Engine::RunPeerSteps(bool runs_ahead) {
  const bool was_under_way = !peer_steps_.empty();
  std::stable_sort(peer_batch_.begin(), peer_batch_.end(), [](const Sequence* a, const Sequence* b) {
    return std::less<>()(a->peer_group(), b->peer_group());
  });
  const bool one_group = !peer_batch_.empty() &&
                         peer_batch_.front()->peer_group() == peer_batch_.back()->peer_group() &&
                         (!was_under_way || peer_batch_.front()->peer_group() == stepping_group_.get());
  if (!one_group) DrainPeerSteps();
  for (size_t first = 0, end = 0; first < peer_batch_.size(); first = end) {
    const std::shared_ptr<PeerStepGroup> group = peer_batch_[first]->shards.front().link->peer_group();
    while (end < peer_batch_.size() && peer_batch_[end]->peer_group() == group.get()) ++end;
    TurnPeerGroup(group, {peer_batch_.data() + first, end - first});
    if (!one_group || !runs_ahead) DrainPeerSteps();
    if (!forward_.status().ok()) return true;
  }
  return was_under_way || !peer_batch_.empty();
}

void Engine::TurnPeerGroup(const std::shared_ptr<PeerStepGroup>& group, std::span<Sequence* const> rows) {
  if (!peer_steps_.empty() && !peer_steps_.draws_all_tokens()) DrainPeerSteps();
  const bool was_under_way = !peer_steps_.empty();
  stepping_group_ = group;
  LaunchPeerStep(*group, rows);
  if (was_under_way) CompletePeerStep();
}

void Engine::DrainPeerSteps() {
  while (!peer_steps_.empty()) CompletePeerStep();
}

void Engine::LaunchPeerStep(PeerStepGroup& group, std::span<Sequence* const> rows) {
  std::vector<Sequence*> going_on;
  for (Sequence* row : rows) {
    if (row->batch_row >= 0 && peer_steps_.NextOf(*row).has_value()) going_on.push_back(row);
  }
  if (going_on.empty()) return;
  const TimelineSpan span(metrics_.timeline, Span::kLaunchStep, kNoLayer, next_plan_,
                          static_cast<uint32_t>(going_on.size()));
  StepsUnderWay::Step step{.number = next_plan_, .rows = {}};
  AnnouncePeerStep(group, going_on);
  std::erase_if(going_on, [](const Sequence* row) { return row->batch_row < 0; });
  if (going_on.empty()) return;
  peer_rows_.clear();
  for (Sequence* sequence : going_on) {
    // One that has failed otherwise takes part in a step that was announced.
    const uint32_t position = sequence->next_step_position();
    const bool is_known = position < sequence->known_tokens();
    peer_rows_.push_back({.batch_row = sequence->batch_row,
                          .token_id = is_known ? std::optional(sequence->token_at(position)) : std::nullopt,
                          .position = position,
                          .draw = DrawFor(*sequence, position),
                          .takes_mass = MeasuresMass(sequence->spec, position - 1, sequence->prompt_tokens())});
    step.rows.push_back({.sequence = sequence,
                         .row = sequence->batch_row,
                         .position = position,
                         .is_drawn = peer_rows_.back().draw.has_value()});
  }
  if (const absl::Status launched = group.Launch(peer_rows_); !launched.ok()) {
    return FailPeerLinksOf(group, going_on, launched);
  }
  peer_steps_.Add(std::move(step));
}

void Engine::CompletePeerStep() {
  const std::shared_ptr<PeerStepGroup> group = stepping_group_;
  const StepsUnderWay::Step step = peer_steps_.TakeOldest();
  absl::Status completed;
  {
    const TimelineSpan span(metrics_.timeline, Span::kAwaitStep, kNoLayer, step.number,
                            static_cast<uint32_t>(step.rows.size()));
    completed = group->Complete();
  }
  const TimelineSpan span(metrics_.timeline, Span::kFinishStep, kNoLayer, step.number,
                          static_cast<uint32_t>(step.rows.size()));
  transport_->Progress();  // a row may have been refused
  std::vector<Sequence*> rows;
  for (const StepsUnderWay::Row& of : step.rows) {
    if (of.sequence != nullptr) rows.push_back(of.sequence);
  }
  FailPeerLinksOf(*group, rows, completed);
  if (std::none_of(step.rows.begin(), step.rows.end(), [](const auto& of) { return of.is_wanted(); })) return;
  ++metrics_.decode_steps;
  ++metrics_.peer_steps;
  ++metrics_.progress;
  for (size_t row = 0; row < step.rows.size(); ++row) {
    if (step.rows[row].is_wanted()) TakePeerRow(*group, step.rows[row], row);
  }
}

void Engine::TakePeerRow(const PeerStepGroup& group, const StepsUnderWay::Row& of, size_t row) {
  Sequence& sequence = *of.sequence;
  WINNOW_CHECK(of.position == sequence.next_position);
  for (size_t i = 0; i < sequence.shards.size(); ++i) {
    const KvShard& shard = sequence.shards[i].shard;
    TakeMasses(sequence, shard, group.batch(i).captured_mass(row));
    CountRows(sequence, shard, group.batch(i).counts(row));
  }
  CountDenseLists(sequence);
  ++sequence.next_position;
  ++sequence.decode_steps;
  if (sequence.next_position != sequence.known_tokens()) return;
  if (of.is_drawn) {
    TakeToken(sequence, group.batch(0).drawn_token(row), {});
  } else {
    TakeToken(sequence, std::nullopt, group.batch(0).logits(row));
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
      peer_steps_.Forget(sequence);
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
  if (sequence.batch_row >= 0) {
    peer_steps_.Forget(sequence);
    sequence.peer_group()->batch_rows().Free(sequence.batch_row, sequence.sequence_id);
  }
  sequence.batch_row = -1;
  sequence.peer_state = Sequence::PeerState::kNone;
}

}  // namespace winnow
