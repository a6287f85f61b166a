// Decode steps that run from GPU to GPU: sequences take seats of a lane (inference_rank/model/decode_lane.h), and leave
// them.
#include <cmath>
#include <cstring>

#include "common/selection/mass_positions.h"
#include "inference_rank/engine.h"

namespace winnow {
namespace {

using SteadyClock = std::chrono::steady_clock;
// Longer than any wait of a lane's other side, which ends all of what it has begun.
constexpr auto kQuarantine = 2 * std::chrono::microseconds(wire::kLaneTimeoutUs);

}  // namespace

LaneTeam* Engine::FindTeam(const Sequence& sequence) {
  for (const ShardLink& shard : sequence.shards) {
    const DecodeLane* const lane = shard.link->lane();
    if (lane == nullptr || !(lane->shape().spec == sequence.spec) || lane->shape().shard != shard.shard) return nullptr;
  }
  LaneTeam* const team = sequence.shards.front().link->lane_team().get();
  if (team != nullptr) return team->HasLinks(sequence.shards) && !team->ended() ? team : nullptr;
  // What has joined others stays with them.
  for (const ShardLink& shard : sequence.shards) {
    if (shard.link->lane_team() != nullptr) return nullptr;
  }
  const absl::StatusOr<std::shared_ptr<LaneTeam>> joined = LaneTeam::Join(sequence.shards);
  for (const ShardLink& shard : sequence.shards) {
    if (joined.ok()) {
      shard.link->set_lane_team(*joined);
    } else {
      links_.DistrustLane(*shard.link, joined.status());
      shard.link->set_lane(nullptr);
    }
  }
  return joined.ok() ? joined->get() : nullptr;
}

absl::Status Engine::PostLanePlan(CacheLink& link, std::span<Sequence* const> rows, uint64_t plan) {
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer,
                          AwaitSendBuffer(*transport_, link, rows.size() * sizeof(wire::PlanRow), options_.waits));
  auto* plan_rows = reinterpret_cast<wire::PlanRow*>(buffer.payload().data());
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sequence& sequence = *rows[i];
    const ShardLink& shard = *sequence.FindShard(link);
    plan_rows[i] = {.sequence_id = sequence.sequence_id,
                    .attach_epoch = shard.attach_epoch,
                    .position = sequence.next_position,
                    .token_id = sequence.token_at(sequence.next_position),
                    .pool_slots = sequence.working_set->pool_slots(shard.shard),
                    .grant_generation = 1,
                    .flags = static_cast<uint32_t>(sequence.seat),
                    .first_kv_head = static_cast<uint16_t>(shard.shard.first_kv_head),
                    .num_kv_heads = static_cast<uint16_t>(shard.shard.num_kv_heads),
                    .first_layer = static_cast<uint16_t>(shard.shard.first_layer),
                    .num_layers = static_cast<uint16_t>(shard.shard.num_layers)};
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kStepPlan;
  header.flags = wire::kPlanOnLane;
  header.plan = plan;
  header.row_count = static_cast<uint32_t>(rows.size());
  return link.channel()->Post(header, std::move(buffer));
}

// The engine waits for the GPU then, which waits for the cache rank's: no frame may wait for the engine.
absl::Status Engine::AwaitLeaving(CacheLink& link) {
  const auto give_up = SteadyClock::now() + options_.waits.timeout;
  transport_->Progress();
  while (link.channel()->sending()) {
    if (!link.alive()) return absl::UnavailableError("the cache rank is gone");
    if (SteadyClock::now() > give_up) return absl::DeadlineExceededError("the cache rank takes no frames");
    transport_->Wait(std::chrono::microseconds(200), std::chrono::microseconds(200));
  }
  return link.channel()->failed();
}

void Engine::RunLaneStep(LaneTeam& team, std::span<Sequence* const> rows) {
  const TimelineSpan span(metrics_.timeline, Span::kStep, kNoLayer, next_plan_, static_cast<uint32_t>(rows.size()));
  lane_rows_.clear();
  for (const Sequence* sequence : rows) {
    lane_rows_.push_back(
        {.seat = sequence->seat,
         .token_id = sequence->token_at(sequence->next_position),
         .position = sequence->next_position,
         .draw = DrawFor(*sequence),
         .takes_mass = MeasuresMass(sequence->spec, sequence->next_position - 1, sequence->prompt_tokens())});
  }
  const uint64_t plan = next_plan_++;
  for (CacheLink* link : team.links()) {
    if (const absl::Status posted = PostLanePlan(*link, rows, plan); !posted.ok()) return FailTeam(team, *link, posted);
  }
  for (CacheLink* link : team.links()) {
    if (const absl::Status left = AwaitLeaving(*link); !left.ok()) return FailTeam(team, *link, left);
  }
  CacheLink* failed = nullptr;
  const absl::Status decoded = team.Decode(lane_rows_, &failed);
  transport_->Progress();  // a row may have been refused
  if (!decoded.ok()) return FailTeam(team, *failed, decoded);
  ++metrics_.decode_steps;
  ++metrics_.lane_steps;
  ++metrics_.progress;
  for (size_t row = 0; row < rows.size(); ++row) {
    Sequence& sequence = *rows[row];
    if (!sequence.failure.ok()) continue;
    for (size_t i = 0; i < sequence.shards.size(); ++i) {
      const KvShard& shard = sequence.shards[i].shard;
      TakeMasses(sequence, shard, team.lane(i).captured_mass(row));
      CountRows(sequence, shard, team.lane(i).counts(row));
    }
    CountDenseLists(sequence);
    ++sequence.next_position;
    ++sequence.decode_steps;
    if (sequence.next_position != sequence.known_tokens()) continue;
    if (lane_rows_[row].draw.has_value()) {
      TakeToken(sequence, team.lane(0).drawn_token(row), {});
    } else {
      TakeToken(sequence, std::nullopt, team.lane(0).logits(row));
    }
  }
}

void Engine::TakeMasses(Sequence& sequence, const KvShard& shard, std::span<const float> masses) {
  for (size_t list = 0; list < masses.size(); ++list) {
    if (std::isnan(masses[list])) continue;
    sequence.mass.Add(masses[list]);
    metrics_.ObserveMass(shard.first_layer + static_cast<int>(list) / shard.num_kv_heads, masses[list]);
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

// As by frames, lists that attend to everything look nothing up; on a lane their rows travel once all the same.
void Engine::CountRows(Sequence& sequence, const KvShard& shard, std::span<const DecodeLane::ListCounts> counts) {
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

// Its sequences are attached again, and go by frames where the failed lane's cache rank is concerned.
void Engine::FailTeam(LaneTeam& team, CacheLink& failed, const absl::Status& why) {
  if (team.End()) return;
  ++metrics_.lanes_failed;
  const auto until = SteadyClock::now() + kQuarantine;
  scheduler_.ForEach([&](Sequence& sequence) {
    if (sequence.lane_team() != &team) return;
    sequence.Fail(absl::UnavailableError(absl::StrCat("the lane to the cache rank has failed: ", why.message())),
                  /*can_retry=*/true);
    if (sequence.working_set.has_value()) quarantine_.emplace_back(until, *std::move(sequence.working_set));
    sequence.working_set.reset();
    sequence.lane_state = Sequence::LaneState::kNone;
    sequence.seat = -1;
  });
  links_.DistrustLane(failed, why);
  for (CacheLink* link : team.links()) {
    link->channel()->Close();
    link->MarkDead();
  }
}

void Engine::AskForSeats() {
  const auto now = SteadyClock::now();
  while (!quarantine_.empty() && quarantine_.front().first < now) quarantine_.pop_front();
  scheduler_.ForEach([&](Sequence& sequence) {
    if (sequence.lane_state != Sequence::LaneState::kWanted || !sequence.failure.ok()) return;
    if (!AskForSeat(sequence).ok()) LeaveLane(sequence);
  });
}

absl::Status Engine::AskForSeat(Sequence& sequence) {
  LaneTeam& team = *sequence.lane_team();
  sequence.seat = team.seats().Take(sequence.sequence_id);
  if (sequence.seat < 0) return absl::ResourceExhaustedError("all seats are taken");
  // Before the first frame: answers may come while others wait for send window.
  sequence.seats_due = sequence.shards.size();
  sequence.lane_state = Sequence::LaneState::kAsked;
  for (size_t i = 0; i < sequence.shards.size(); ++i) {
    const ShardLink& shard = sequence.shards[i];
    const std::vector<uint32_t> pages = sequence.working_set->PagesOfLists(shard.shard, team.shape().pages_per_list);
    const size_t bytes = pages.size() * sizeof(uint32_t);
    WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, AwaitSendBuffer(*transport_, *shard.link, bytes, options_.waits));
    if (sequence.lane_state != Sequence::LaneState::kAsked) return absl::OkStatus();  // one has refused meanwhile
    std::memcpy(buffer.payload().data(), pages.data(), bytes);
    wire::FrameHeader header{};
    header.type = wire::FrameType::kSeat;
    header.sequence_id = sequence.sequence_id;
    header.attach_epoch = shard.attach_epoch;
    header.apply_position = sequence.next_position;
    header.row_count = static_cast<uint32_t>(sequence.seat);
    WINNOW_RETURN_IF_ERROR(shard.link->channel()->Post(header, std::move(buffer)));
    team.lane(i).Seat(sequence.seat, pages);
  }
  return absl::OkStatus();
}

void Engine::OnSeated(const CacheLink& link, Sequence& sequence, const wire::FrameHeader& header) {
  const ShardLink* const shard = sequence.FindShard(link);
  const bool current = sequence.lane_state == Sequence::LaneState::kAsked && shard != nullptr &&
                       header.attach_epoch == shard->attach_epoch &&
                       header.row_count == static_cast<uint32_t>(sequence.seat);
  if (!current) {
    ++metrics_.stale_frames;
  } else if ((header.flags & wire::kSeatGranted) == 0) {
    LeaveLane(sequence);
  } else if (--sequence.seats_due == 0) {
    sequence.lane_state = Sequence::LaneState::kSeated;
  }
}

void Engine::LeaveLane(Sequence& sequence) {
  if (sequence.seat >= 0) sequence.lane_team()->seats().Free(sequence.seat, sequence.sequence_id);
  sequence.seat = -1;
  sequence.lane_state = Sequence::LaneState::kNone;
}

}  // namespace winnow
