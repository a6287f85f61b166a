#include "cache_rank/step/frame_handler.h"

#include "cache_rank/step/frame_checks.h"
#include "cache_rank/step/plan_rows.h"
#include "common/base/kv_layout.h"

namespace winnow {
namespace {

KvShard ShardOf(const wire::PlanRow& row) {
  return {.first_kv_head = row.first_kv_head,
          .num_kv_heads = row.num_kv_heads,
          .first_layer = row.first_layer,
          .num_layers = row.num_layers};
}

// The layer of the sequence's shard that a frame is of; INVALID_ARGUMENT when it has none such.
absl::StatusOr<int> LayerOf(const CachedSequence& sequence, const wire::FrameHeader& header) {
  const int layer = header.layer_first - sequence.shard.first_layer;
  if (layer >= 0 && layer < sequence.layout.num_layers) return layer;
  return absl::InvalidArgumentError(
      absl::StrCat("rows or queries of layer ", header.layer_first, ", which is of another cache rank"));
}

}  // namespace

void FrameHandler::Handle(InferenceLink& link, const ReceivedFrame& frame) {
  if (!link.failure.ok()) return;
  metrics_->frames_received.Add(1);
  absl::Status status;
  switch (frame.header().type) {
    case wire::FrameType::kStepPlan:
      status = HandleStepPlan(link, frame);
      break;
    case wire::FrameType::kBatchRow:
      status = peer_links_.HandleBatchRow(link, frame);
      break;
    case wire::FrameType::kLayer:
      status = HandleLayer(link, frame);
      break;
    case wire::FrameType::kAppendRange:
      status = HandleAppendRange(link, frame);
      break;
    case wire::FrameType::kStaged:
      status = peer_links_.HandleStaged(link, frame);
      break;
    case wire::FrameType::kPromptQueries:
      status = HandlePromptQueries(link, frame);
      break;
    case wire::FrameType::kPrefixQueries:
      status = HandlePrefixQueries(link, frame);
      break;
    case wire::FrameType::kState:
      status = HandleState(link, frame);
      break;
    case wire::FrameType::kStepRows:
      status = step_rows_.Take(link, frame);
      break;
    case wire::FrameType::kTransferFailed:
      HandleTransferFailed(link, frame.header());
      break;
    case wire::FrameType::kFenced:
      break;  // the peer detaches or re-attaches by itself
    default:
      status =
          absl::InvalidArgumentError(absl::StrCat("unexpected frame type ", static_cast<int>(frame.header().type)));
      break;
  }
  if (status.ok()) return;
  metrics_->frames_malformed.Add(1);
  link.Fail(status);
}

absl::Status FrameHandler::HandleStepPlan(InferenceLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  if ((header.flags & wire::kPlanByPeer) != 0) return peer_links_.HandlePlan(link, frame);
  if (header.plan == 0 || link.FindPlan(header.plan) != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("plan ", header.plan, " was opened before"));
  }
  WINNOW_RETURN_IF_ERROR(ReadPlanRows(frame, &plan_rows_));
  metrics_->plans.Add(1);
  OpenPlan& plan = link.plans[link.next_plan];
  link.next_plan = (link.next_plan + 1) % InferenceLink::kOpenPlans;
  plan.plan = header.plan;
  plan.rows.clear();
  for (uint32_t i = 0; i < plan_rows_.size(); ++i) {
    const wire::PlanRow& row = plan_rows_[i];
    const KvShard shard = ShardOf(row);
    WINNOW_RETURN_IF_ERROR(CheckShard(layout_, shard));
    plan.rows.push_back({row.sequence_id, row.attach_epoch, row.position, shard});
    CachedSequence* sequence = fence_.Holder(link, row.sequence_id, row.attach_epoch);
    if (sequence == nullptr) continue;
    peer_links_.TakeStagedOf(link, sequence->id);  // a step reads rows
    if (!TakePlanRow(*sequence, header.plan, i, row)) selector_->Refuse(link, header.plan, *sequence, 0);
  }
  selector_->OnPlan(link, plan);
  return absl::OkStatus();
}

bool FrameHandler::TakePlanRow(CachedSequence& sequence, uint64_t plan, uint32_t row_index, const wire::PlanRow& row) {
  if (row.position != sequence.kv.watermark() || row.position >= sequence.kv.max_positions()) return false;
  if (row.pool_slots != sequence.total_pool_slots || ShardOf(row) != sequence.shard) return false;
  const bool everything = (row.flags & wire::kPlanAttendsEverything) != 0;
  bool sparse = false, selects = false;
  for (size_t list = 0; list < sequence.num_lists(); ++list) {
    if (everything && !AttendsEverything(sequence.spec, list, row.position, sequence.prompt_tokens)) return false;
    sparse |= sequence.IsSparse(list, row.position);
    selects |= NeedsSelection(sequence.spec, list, row.position, sequence.prompt_tokens);
  }
  sequence.journal.Record(row.position, row.token_id);
  sequence.planned = {.plan = plan,
                      .row = row_index,
                      .position = row.position,
                      .sparse = sparse,
                      .selects = selects,
                      .tells_positions = (row.flags & wire::kPlanTellsPositions) != 0};
  return true;
}

absl::Status FrameHandler::HandleLayer(InferenceLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  const OpenPlan* plan = link.FindPlan(header.plan);
  if (plan == nullptr) return absl::OkStatus();  // of a plan that newer ones pushed out: its rows are stale
  WINNOW_RETURN_IF_ERROR(sections_.Parse(frame, *plan));
  const int layer = header.layer_first;
  const size_t rows = plan->rows.size();
  const TimelineSpan span(metrics_->timeline, Span::kAppend, static_cast<uint16_t>(layer), header.plan,
                          static_cast<uint32_t>(rows));
  for (size_t i = 0; i < rows; ++i) {
    const OpenPlan::Row& row = plan->rows[i];
    CachedSequence* sequence = fence_.Holder(link, row.sequence_id, row.attach_epoch);
    if (sequence == nullptr || sequence->planned.plan != header.plan || !row.shard.HasLayer(layer)) continue;
    const int local = layer - row.shard.first_layer;
    if (sections_.rows(i) != nullptr) AppendRow(link, *sequence, local, row.position, sections_.rows(i));
    if (sequence->planned.plan != header.plan) continue;
    if (SelectsFromAll(sequence->spec)) {
      if (sections_.index_query(i) != nullptr) {
        queries_.TakeIndexQuery(link, *sequence, local, row.position, sections_.index_query(i));
      } else if (sections_.rows(i) != nullptr && sequence->planned.selects) {
        selector_->Refuse(link, header.plan, *sequence, local);
      }
    } else if (sections_.query(i) != nullptr) {
      queries_.TakeQuery(link, *sequence, local, row.position, sections_.query(i));
    } else if (sections_.rows(i) != nullptr && QueryIntake::NeedsQuery(*sequence, local)) {
      selector_->Refuse(link, header.plan, *sequence, local);
    }
  }
  // After all rows' queries: the peer waits for what those decide first, and work of one kind runs in one batch.
  for (size_t i = 0; i < rows; ++i) {
    const OpenPlan::Row& row = plan->rows[i];
    CachedSequence* sequence = store_->FindAttached(row.sequence_id, row.attach_epoch, link.id);
    if (sequence == nullptr || sequence->planned.plan != header.plan) continue;
    if (SelectsFromAll(sequence->spec)) continue;
    if (sections_.query(i) != nullptr) selector_->OnQuery(link, *sequence, layer - row.shard.first_layer, row.position);
    queries_.TakeTarget(link, header, *sequence, row.position, sections_.prediction(i), sections_.hidden(i));
  }
  for (size_t i = 0; i < rows; ++i) {
    const OpenPlan::Row& row = plan->rows[i];
    if (sections_.rows(i) == nullptr || layer != row.shard.last_layer()) continue;
    const CachedSequence* sequence = store_->FindAttached(row.sequence_id, row.attach_epoch, link.id);
    if (sequence != nullptr && sequence->planned.plan == header.plan)
      streamer_->SendWatermark(link, header.plan, *sequence);
  }
  return absl::OkStatus();
}

void FrameHandler::AppendRow(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t position,
                             const std::byte* rows) {
  if (!sequence.kv.Append(layer, position, 1, rows, executor_).ok())
    return selector_->Refuse(link, sequence.planned.plan, sequence, layer);
  metrics_->appended_rows.Add(sequence.layout.num_kv_heads);
}

void FrameHandler::HandleTransferFailed(const InferenceLink& link, const wire::FrameHeader& header) {
  CachedSequence* sequence = store_->FindAttached(header.sequence_id, header.attach_epoch, link.id);
  if (sequence != nullptr && sequence->planned.plan == header.plan) sequence->planned = {};
}

absl::Status FrameHandler::HandleAppendRange(InferenceLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  CachedSequence* sequence = fence_.Holder(link, header.sequence_id, header.attach_epoch);
  if (sequence == nullptr) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(const int layer, LayerOf(*sequence, header));
  const KvLayout& layout = sequence->layout;
  WINNOW_RETURN_IF_ERROR(CheckPayload(frame, size_t{header.row_count} * layout.num_kv_heads * layout.row_bytes()));
  peer_links_.TakeStagedOf(link, sequence->id);
  const std::byte* const rows = frame.payload().data();
  const uint32_t first = header.apply_position, count = header.row_count;
  if (!prompts_.Append(link, *sequence, layer, first, count, rows)) return absl::OkStatus();
  peer_links_.OnPromptRows(link, *sequence, layer, first, count, rows);
  return absl::OkStatus();
}

absl::Status FrameHandler::HandlePromptQueries(InferenceLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  CachedSequence* sequence = fence_.Holder(link, header.sequence_id, header.attach_epoch);
  if (sequence == nullptr || sequence->spec.predictor == Predictor::kDense) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(const int layer, LayerOf(*sequence, header));
  const KvLayout& layout = sequence->layout;
  const size_t query_floats = static_cast<size_t>(layout.num_query_heads) * layout.head_dim;
  WINNOW_RETURN_IF_ERROR(CheckPayload(frame, header.row_count * query_floats * sizeof(float)));
  if (const uint64_t end = uint64_t{header.apply_position} + header.row_count; end > sequence->kv.max_positions()) {
    return absl::InvalidArgumentError(
        absl::StrCat("queries of positions up to ", end, " of a sequence of ", sequence->kv.max_positions()));
  }
  queries_.TakePromptQueries(link, *sequence, layer, header.apply_position, header.row_count,
                             reinterpret_cast<const float*>(frame.payload().data()));
  return absl::OkStatus();
}

absl::Status FrameHandler::HandleState(InferenceLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  CachedSequence* sequence = fence_.Holder(link, header.sequence_id, header.attach_epoch);
  if (sequence == nullptr) return absl::OkStatus();
  if (header.apply_position > sequence->kv.max_positions()) {
    return absl::InvalidArgumentError(absl::StrCat("a state at position ", header.apply_position, " of a sequence of ",
                                                   sequence->kv.max_positions()));
  }
  WINNOW_ASSIGN_OR_RETURN(const bool complete,
                          sequence->states.Take(header.apply_position, header.plan, frame.payload()));
  if (!complete) return absl::OkStatus();
  metrics_->state_snapshots.Add(1);
  streamer_->SendWatermark(link, 0, *sequence);
  return absl::OkStatus();
}

absl::Status FrameHandler::HandlePrefixQueries(InferenceLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  CachedSequence* sequence = fence_.Holder(link, header.sequence_id, header.attach_epoch);
  if (sequence == nullptr) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(const int layer, LayerOf(*sequence, header));
  WINNOW_ASSIGN_OR_RETURN(const bool taken, attender_->Take(link, *sequence, layer, frame));
  if (!taken) selector_->Refuse(link, 0, *sequence, layer);
  return absl::OkStatus();
}

}  // namespace winnow
