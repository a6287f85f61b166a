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

absl::Status Engine::PostLanePlan(CacheLink& link, std::span<Sequence* const> rows) {
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer,
                          AwaitSendBuffer(*transport_, link, rows.size() * sizeof(wire::PlanRow), options_.waits));
  auto* plan_rows = reinterpret_cast<wire::PlanRow*>(buffer.payload().data());
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sequence& sequence = *rows[i];
    plan_rows[i] = {.sequence_id = sequence.sequence_id,
                    .attach_epoch = sequence.shards.front().attach_epoch,
                    .position = sequence.next_position,
                    .token_id = sequence.token_at(sequence.next_position),
                    .pool_slots = sequence.working_set->pool_slots(),
                    .grant_generation = 1,
                    .flags = static_cast<uint32_t>(sequence.seat),
                    .first_kv_head = 0,
                    .num_kv_heads = static_cast<uint16_t>(layout_.num_kv_heads),
                    .first_layer = 0,
                    .num_layers = static_cast<uint16_t>(layout_.num_layers)};
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kStepPlan;
  header.flags = wire::kPlanOnLane;
  header.plan = next_plan_++;
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

void Engine::RunLaneStep(CacheLink& link, std::span<Sequence* const> rows) {
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
  if (const absl::Status posted = PostLanePlan(link, rows); !posted.ok()) return FailLane(link, posted);
  if (const absl::Status left = AwaitLeaving(link); !left.ok()) return FailLane(link, left);
  const absl::Status decoded = link.lane()->Decode(lane_rows_);
  transport_->Progress();  // a row may have been refused
  if (!decoded.ok()) return FailLane(link, decoded);
  ++metrics_.decode_steps;
  ++metrics_.lane_steps;
  ++metrics_.progress;
  for (size_t row = 0; row < rows.size(); ++row) {
    Sequence& sequence = *rows[row];
    if (!sequence.failure.ok()) continue;
    TakeMasses(sequence, link.lane()->captured_mass(row));
    CountDenseLists(sequence);
    CountRows(sequence, link.lane()->counts(row));
    ++sequence.next_position;
    ++sequence.decode_steps;
    if (sequence.next_position != sequence.known_tokens()) continue;
    if (lane_rows_[row].draw.has_value()) {
      TakeToken(sequence, link.lane()->drawn_token(row), {});
    } else {
      TakeToken(sequence, std::nullopt, link.lane()->logits(row));
    }
  }
}

void Engine::TakeMasses(Sequence& sequence, std::span<const float> masses) {
  for (size_t list = 0; list < masses.size(); ++list) {
    if (std::isnan(masses[list])) continue;
    sequence.mass.Add(masses[list]);
    metrics_.ObserveMass(static_cast<int>(list) / layout_.num_kv_heads, masses[list]);
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
void Engine::CountRows(Sequence& sequence, std::span<const DecodeLane::ListCounts> counts) {
  uint64_t lookups = 0, misses = 0, pushed = 0;
  for (size_t list = 0; list < counts.size(); ++list) {
    pushed += counts[list].pushed;
    if (sequence.working_set->AttendsEverything(list, sequence.next_position)) continue;
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

// Its sequences are attached again, through a link without a lane.
void Engine::FailLane(CacheLink& link, const absl::Status& why) {
  ++metrics_.lanes_failed;
  const auto until = SteadyClock::now() + kQuarantine;
  scheduler_.ForEach([&](Sequence& sequence) {
    if (sequence.first_link() != &link || sequence.lane_state == Sequence::LaneState::kNone) return;
    sequence.Fail(absl::UnavailableError(absl::StrCat("the lane to the cache rank has failed: ", why.message())),
                  /*can_retry=*/true);
    if (sequence.working_set.has_value()) quarantine_.emplace_back(until, *std::move(sequence.working_set));
    sequence.working_set.reset();
    sequence.lane_state = Sequence::LaneState::kNone;
    sequence.seat = -1;
  });
  links_.DistrustLane(link, why);
  link.channel()->Close();
  link.MarkDead();
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
  CacheLink& link = *sequence.first_link();
  sequence.seat = link.seats().Take(sequence.sequence_id);
  if (sequence.seat < 0) return absl::ResourceExhaustedError("all seats are taken");
  const std::vector<uint32_t> pages = sequence.working_set->PagesOfLists(link.lane()->shape().pages_per_list);
  const size_t bytes = pages.size() * sizeof(uint32_t);
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, AwaitSendBuffer(*transport_, link, bytes, options_.waits));
  std::memcpy(buffer.payload().data(), pages.data(), bytes);
  wire::FrameHeader header{};
  header.type = wire::FrameType::kSeat;
  header.sequence_id = sequence.sequence_id;
  header.attach_epoch = sequence.shards.front().attach_epoch;
  header.apply_position = sequence.next_position;
  header.row_count = static_cast<uint32_t>(sequence.seat);
  WINNOW_RETURN_IF_ERROR(link.channel()->Post(header, std::move(buffer)));
  link.lane()->Seat(sequence.seat, pages);
  sequence.lane_state = Sequence::LaneState::kAsked;
  return absl::OkStatus();
}

void Engine::OnSeated(Sequence& sequence, const wire::FrameHeader& header) {
  const bool current = sequence.lane_state == Sequence::LaneState::kAsked &&
                       header.attach_epoch == sequence.shards.front().attach_epoch &&
                       header.row_count == static_cast<uint32_t>(sequence.seat);
  if (!current) {
    ++metrics_.stale_frames;
  } else if ((header.flags & wire::kSeatGranted) != 0) {
    sequence.lane_state = Sequence::LaneState::kSeated;
  } else {
    LeaveLane(sequence);
  }
}

void Engine::LeaveLane(Sequence& sequence) {
  if (sequence.seat >= 0) sequence.first_link()->seats().Free(sequence.seat, sequence.sequence_id);
  sequence.seat = -1;
  sequence.lane_state = Sequence::LaneState::kNone;
}

}  // namespace winnow
