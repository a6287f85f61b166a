#include "inference_rank/decode_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/check.h"
#include "inference_rank/payload_reader.h"

namespace winnow {
namespace {

// The first layer whose delta the cache rank sends without what that layer publishes at this position.
int FirstAheadLayer(const SelectionSpec& spec, uint32_t position, bool needs_delta) {
  constexpr int kNone = std::numeric_limits<int>::max();
  if (position < spec.sink_tokens) return kNone;  // its row has two places
  if (!needs_delta) return 0;
  switch (spec.predictor) {
    case Predictor::kExact:
      return kNone;
    case Predictor::kDepth:
      return static_cast<int>(spec.lookahead);
    default:
      return 0;
  }
}

bool UsesQueries(const SelectionSpec& spec) {
  return !IsDense(spec) && spec.predictor != Predictor::kFixed;
}

}  // namespace

DecodeStep::DecodeStep(Transport& transport, const KvLayout& layout, InferenceRankMetrics& metrics,
                       const DataPlaneWaits& waits)
    : transport_(transport), layout_(layout), metrics_(metrics), waits_(waits) {}

void DecodeStep::Begin(uint64_t plan, std::span<Sequence* const> sequences) {
  plan_ = plan;
  active_ = true;
  lookahead_ = 0;
  first_ahead_layer_ = 0;
  waits_for_partials_ = false;
  judged_layer_ = -1;
  step_lookups_ = 0;
  step_streamed_ = 0;
  rows_.clear();
  groups_.clear();
  token_ids_.clear();
  positions_.clear();
  missing_.assign(sequences.size() * layout_.num_layers, 0);
  for (Sequence* sequence : sequences) {
    const uint32_t position = sequence->next_position;
    WorkingSet& set = *sequence->working_set;
    set.Advance(position);
    uint32_t dense_lists = 0;
    bool sparse = false, selects = false, needs_delta = false;
    for (size_t list = 0; list < layout_.num_lists(); ++list) {
      dense_lists += set.AttendsEverything(list, position);
      sparse |= set.IsSparse(list, position);
      selects |= set.NeedsSelection(list, position);
      needs_delta |= set.NeedsDelta(list, position);
      missing_[list / layout_.num_kv_heads * sequences.size() + rows_.size()] += set.NeedsDelta(list, position);
    }
    first_ahead_layer_ = std::max(first_ahead_layer_, FirstAheadLayer(sequence->spec, position, needs_delta));
    if (groups_.empty() || groups_.back().link != sequence->link.get()) {
      groups_.push_back({sequence->link.get(), static_cast<int>(rows_.size()), 0, false, false, 0});
    }
    Group& group = groups_.back();
    ++group.count;
    group.needs_queries |= UsesQueries(sequence->spec);
    if (selects && sequence->spec.predictor == Predictor::kDepth) {
      const int lookahead = static_cast<int>(sequence->spec.lookahead);
      if (sequence->spec.projection == Projection::kCacheRank) {
        group.hidden_layers = std::max(group.hidden_layers, layout_.num_layers - lookahead);
      } else {
        group.needs_predictions = true;
        lookahead_ = lookahead;
      }
    }
    const bool judged = WaitsForVerdict(sequence->spec) && sparse;
    waits_for_partials_ |= judged;
    rows_.push_back({.sequence = sequence, .dense_lists = dense_lists, .judged = judged, .poisoned = false});
    token_ids_.push_back(sequence->token_at(position));
    positions_.push_back(position);
  }
  for (const Group& group : groups_) {
    if (absl::Status posted = PostPlan(group); !posted.ok()) Poison(group.first, group.count, posted);
  }
}

absl::Status DecodeStep::PostPlan(const Group& group) {
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer,
                          AwaitSendBuffer(transport_, *group.link, group.count * sizeof(wire::PlanRow), waits_));
  auto* plan_rows = reinterpret_cast<wire::PlanRow*>(buffer.payload().data());
  for (int i = 0; i < group.count; ++i) {
    const Row& row = rows_[group.first + i];
    plan_rows[i] = {.sequence_id = row.sequence->sequence_id,
                    .attach_epoch = row.sequence->attach_epoch,
                    .position = positions_[group.first + i],
                    .token_id = token_ids_[group.first + i],
                    .pool_slots = row.sequence->working_set->pool_slots(),
                    .grant_generation = 1,
                    .flags = row.dense_lists == layout_.num_lists() ? wire::kPlanAttendsEverything : 0};
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kStepPlan;
  header.plan = plan_;
  header.row_count = group.count;
  return group.link->channel()->Post(header, std::move(buffer));
}

void DecodeStep::PlacesOfRows(HeadRange heads, std::span<void*> places) const {
  WINNOW_CHECK(places.size() == static_cast<size_t>(layout_.num_layers) * heads.count * rows_.size());
  for (int layer = std::min(first_ahead_layer_, layout_.num_layers); layer < layout_.num_layers; ++layer) {
    void** out = &places[layer * rows_.size() * heads.count];
    for (size_t row = 0; row < rows_.size(); ++row) {
      const WorkingSet& set = *rows_[row].sequence->working_set;
      for (int i = 0; i < heads.count; ++i) *out++ = set.PlaceOfRow(layer, heads.first + i, positions_[row]);
    }
  }
}

bool DecodeStep::NeedsHidden(int layer) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const Group& group) { return layer < group.hidden_layers; });
}

void DecodeStep::Publish(const DecodeLayerOutput& output) {
  const TimelineSpan span(metrics_.timeline, Span::kPublish, static_cast<uint16_t>(output.layer), plan_,
                          static_cast<uint32_t>(rows_.size()));
  if (waits_for_partials_) {
    const size_t heads = rows_.size() * layout_.num_kv_heads;
    judged_layer_ = output.layer;
    partials_.clear();
    partial_states_.resize(heads * wire::PartialStateBytes(layout_.group_size(), layout_.head_dim) / sizeof(float));
    unjudged_.resize(heads);
    for (size_t i = 0; i < heads; ++i) {
      const Row& row = rows_[i / layout_.num_kv_heads];
      const size_t list = layout_.list(output.layer, static_cast<int>(i % layout_.num_kv_heads));
      const uint32_t position = positions_[i / layout_.num_kv_heads];
      unjudged_[i] = row.judged && row.sequence->working_set->IsSparse(list, position);
    }
  }
  const size_t row_bytes = layout_.row_bytes();
  for (size_t row = 0; row < rows_.size() && !output.rows_are_resident; ++row) {
    for (int head = 0; head < layout_.num_kv_heads; ++head) {
      rows_[row].sequence->working_set->WriteRow(output.layer, head, positions_[row],
                                                 output.kv_rows + (row * layout_.num_kv_heads + head) * row_bytes);
    }
  }
  for (const Group& group : groups_) {
    if (rows_[group.first].poisoned && !group.link->alive()) continue;
    if (absl::Status posted = PostLayer(group, output); !posted.ok()) Poison(group.first, group.count, posted);
  }
}

absl::Status DecodeStep::PostLayer(const Group& group, const DecodeLayerOutput& output) {
  const size_t token_kv_bytes = layout_.num_kv_heads * layout_.row_bytes();
  const size_t query_floats = static_cast<size_t>(layout_.num_query_heads) * layout_.head_dim;
  const size_t append_bytes = group.count * token_kv_bytes;
  const size_t query_bytes = group.count * query_floats * sizeof(float);
  const bool predictions = group.needs_predictions && output.prediction != nullptr;
  const bool hidden = output.layer < group.hidden_layers;
  const size_t hidden_bytes = group.count * output.hidden_size * sizeof(float);
  const size_t bytes =
      SectionWriter::Size(append_bytes) + (group.needs_queries ? SectionWriter::Size(query_bytes) : 0) +
      (predictions ? SectionWriter::Size(query_bytes) : 0) + (hidden ? SectionWriter::Size(hidden_bytes) : 0);
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, AwaitSendBuffer(transport_, *group.link, bytes, waits_));
  wire::FrameHeader header{};
  header.type = wire::FrameType::kLayer;
  header.plan = plan_;
  header.layer_first = static_cast<uint16_t>(output.layer);
  header.row_count = group.count;
  SectionWriter writer(buffer.payload());
  header.flags |= wire::kSectionAppend;
  writer.Write(output.kv_rows + group.first * token_kv_bytes, append_bytes);
  if (group.needs_queries) {
    header.flags |= wire::kSectionQuery;
    writer.Write(output.q_pre_rope + group.first * query_floats, query_bytes);
  }
  if (predictions) {
    header.flags |= wire::kSectionPrediction;
    header.prediction_layer = static_cast<uint16_t>(output.prediction_layer);
    writer.Write(output.prediction + group.first * query_floats, query_bytes);
  }
  if (hidden) {
    header.flags |= wire::kSectionHidden;
    writer.Write(output.hidden + static_cast<size_t>(group.first) * output.hidden_size, hidden_bytes);
  }
  return group.link->channel()->Post(header, std::move(buffer));
}

void DecodeStep::Poison(int first, int count, const absl::Status& status) {
  for (int row = first; row < first + count; ++row) {
    rows_[row].poisoned = true;
    rows_[row].sequence->Fail(status, /*can_retry=*/true);
  }
}

bool DecodeStep::Waits(int row) const {
  return !rows_[row].poisoned && rows_[row].sequence->failure.ok();
}

bool DecodeStep::Complete(int layer) const {
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (missing_[layer * rows_.size() + row] > 0 && Waits(static_cast<int>(row))) return false;
  }
  return true;
}

bool DecodeStep::Judged() const {
  for (size_t i = 0; i < unjudged_.size(); ++i) {
    if (unjudged_[i] != 0 && Waits(static_cast<int>(i) / layout_.num_kv_heads)) return false;
  }
  return true;
}

// Lets the transport work until `done`; poisons rows whose link ends, and calls `give_up` when the time is over, which
// must make `done` true.
template <typename Done, typename GiveUp>
void DecodeStep::WaitUntil(Span what, int layer, Done done, GiveUp give_up, std::atomic<uint64_t>& waited_us) {
  if (done()) return;
  const TimelineSpan span(metrics_.timeline, what, static_cast<uint16_t>(layer), plan_,
                          static_cast<uint32_t>(rows_.size()));
  const auto start = std::chrono::steady_clock::now();
  while (!done()) {
    for (const Group& group : groups_) {
      if (!group.link->alive()) Poison(group.first, group.count, absl::UnavailableError("the cache rank is gone"));
    }
    if (done()) break;
    transport_.Wait(std::chrono::milliseconds(5), waits_.spin);
    if (std::chrono::steady_clock::now() - start > waits_.timeout) give_up();
  }
  const auto waited = std::chrono::steady_clock::now() - start;
  waited_us += std::chrono::duration_cast<std::chrono::microseconds>(waited).count();
}

void DecodeStep::UseResidentOnly(int row, int layer) {
  for (int head = 0; head < layout_.num_kv_heads; ++head) {
    WINNOW_CHECK(rows_[row].sequence->working_set->SetSelection(layer, head, positions_[row], {}).ok());
  }
}

void DecodeStep::AwaitSlots(int layer, SlotLists& lists) {
  const auto give_up = [&] {
    for (size_t row = 0; row < rows_.size(); ++row) {
      if (missing_[layer * rows_.size() + row] > 0) {
        Poison(static_cast<int>(row), 1, absl::DeadlineExceededError(absl::StrCat("no delta for layer ", layer)));
      }
    }
  };
  WaitUntil(
      Span::kAwaitRows, layer, [&] { return Complete(layer); }, give_up, metrics_.delta_wait_us);
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (missing_[layer * rows_.size() + row] > 0) UseResidentOnly(static_cast<int>(row), layer);
    const WorkingSet& set = *rows_[row].sequence->working_set;
    for (int head = 0; head < layout_.num_kv_heads; ++head) {
      const int num_lists = set.NumSlotLists(layer, head);
      uint64_t attended = 0;
      for (int i = 0; i < num_lists; ++i) {
        const std::span<const uint32_t> list = set.Slots(layer, head, i);
        lists.Add(list, layout_.group_size() / num_lists);
        attended += list.size();
      }
      rows_[row].sequence->attended_rows += attended / num_lists;
    }
  }
}

std::span<const PartialAttention> DecodeStep::AwaitPartials(int layer) {
  WINNOW_CHECK(layer == judged_layer_);
  const auto give_up = [&] {
    for (size_t i = 0; i < unjudged_.size(); ++i) {
      if (unjudged_[i] == 0) continue;
      Poison(static_cast<int>(i) / layout_.num_kv_heads, 1,
             absl::DeadlineExceededError(absl::StrCat("no verdict for layer ", layer)));
    }
  };
  WaitUntil(
      Span::kAwaitVerdict, judged_layer_, [&] { return Judged(); }, give_up, metrics_.partial_wait_us);
  return partials_;
}

const DecodeStep::Group* DecodeStep::FindGroup(const CacheLink& link) const {
  for (const Group& group : groups_) {
    if (group.link == &link) return &group;
  }
  return nullptr;
}

absl::Status DecodeStep::OnPartial(const CacheLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  if (!active_ || header.plan != plan_) {
    ++metrics_.stale_frames;
    return absl::OkStatus();
  }
  const Group* group = FindGroup(link);
  if (group == nullptr) return absl::InvalidArgumentError("verdicts from a cache rank that is not in the plan");
  const size_t state_floats = wire::PartialStateBytes(layout_.group_size(), layout_.head_dim) / sizeof(float);
  PayloadReader reader(frame.payload(), 0);
  for (uint32_t i = 0; i < header.row_count; ++i) {
    WINNOW_ASSIGN_OR_RETURN(auto entries, reader.Array<wire::PartialEntry>(1, alignof(uint32_t)));
    wire::PartialEntry entry;
    std::memcpy(&entry, entries.data(), sizeof entry);
    if (entry.plan_row >= static_cast<uint32_t>(group->count) || entry.kv_head >= layout_.num_kv_heads) {
      return absl::InvalidArgumentError(
          absl::StrCat("verdict on plan row ", entry.plan_row, ", kv head ", entry.kv_head));
    }
    const bool known =
        entry.flags == 0 || entry.flags == wire::kPartialMissedTopK || entry.flags == wire::kPartialWidened;
    const bool corrected = entry.flags != 0;
    if (!known || corrected != (entry.rows_read > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("verdict with flags ", entry.flags, " and ", entry.rows_read, " rows"));
    }
    WINNOW_ASSIGN_OR_RETURN(auto state, reader.Array<float>(corrected ? state_floats : 0, alignof(float)));
    WINNOW_RETURN_IF_ERROR(
        TakeVerdict(group->first + static_cast<int>(entry.plan_row), header.layer_first, entry, state));
  }
  if (reader.offset() != frame.payload().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(header.row_count, " verdicts end at byte ", reader.offset(), " of ", frame.payload().size()));
  }
  return absl::OkStatus();
}

absl::Status DecodeStep::TakeVerdict(int row_index, int layer, const wire::PartialEntry& entry,
                                     std::span<const float> state) {
  const Row& row = rows_[row_index];
  const size_t head = static_cast<size_t>(row_index) * layout_.num_kv_heads + entry.kv_head;
  if (!row.judged || layer > judged_layer_) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected verdict on layer ", layer));
  }
  if (!Waits(row_index)) return absl::OkStatus();  // too late: its result is discarded
  if (layer != judged_layer_ || unjudged_[head] == 0) {
    return absl::InvalidArgumentError(absl::StrCat("second verdict on layer ", layer, ", kv head ", entry.kv_head));
  }
  unjudged_[head] = 0;
  Sequence& sequence = *row.sequence;
  if (!std::isnan(entry.mass_before)) {
    sequence.mass_before.Add(entry.mass_before);
    metrics_.ObserveMass(layer, entry.mass_before);
  }
  if (!std::isnan(entry.mass_after)) sequence.mass.Add(entry.mass_after);
  sequence.missed_top_k_corrections += (entry.flags & wire::kPartialMissedTopK) != 0;
  sequence.widened_corrections += (entry.flags & wire::kPartialWidened) != 0;
  sequence.correction_rows += entry.rows_read;
  if (state.empty()) return absl::OkStatus();
  float* copy = std::copy(state.begin(), state.end(), partial_states_.data() + head * state.size()) - state.size();
  partials_.push_back({.row = row_index,
                       .kv_head = entry.kv_head,
                       .o = copy,
                       .lse = copy + static_cast<size_t>(layout_.group_size()) * layout_.head_dim});
  return absl::OkStatus();
}

absl::Status DecodeStep::OnDelta(const CacheLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  if (!active_ || header.plan != plan_) {
    ++metrics_.stale_frames;  // of a step that gave up on it
    return absl::OkStatus();
  }
  if (header.layer_first >= layout_.num_layers)
    return absl::InvalidArgumentError(absl::StrCat("delta of layer ", header.layer_first));
  const Group* group = FindGroup(link);
  if (group == nullptr) return absl::InvalidArgumentError("delta from a cache rank that is not in the plan");
  size_t offset = 0;
  for (uint32_t i = 0; i < header.row_count; ++i) {
    PayloadReader reader(frame.payload(), offset);
    WINNOW_ASSIGN_OR_RETURN(auto entries, reader.Array<wire::DeltaEntry>(1, alignof(uint32_t)));
    wire::DeltaEntry entry;
    std::memcpy(&entry, entries.data(), sizeof entry);
    if (entry.plan_row >= static_cast<uint32_t>(group->count) || entry.kv_head >= layout_.num_kv_heads) {
      return absl::InvalidArgumentError(
          absl::StrCat("delta entry of plan row ", entry.plan_row, ", kv head ", entry.kv_head));
    }
    offset = reader.offset();
    WINNOW_RETURN_IF_ERROR(CommitEntry(group->first + static_cast<int>(entry.plan_row), header.layer_first, entry,
                                       frame.payload(), &offset));
  }
  return absl::OkStatus();
}

absl::Status DecodeStep::CommitEntry(int row_index, int layer, const wire::DeltaEntry& entry,
                                     std::span<const std::byte> payload, size_t* offset) {
  Row& row = rows_[row_index];
  Sequence& sequence = *row.sequence;
  uint16_t& missing = missing_[layer * rows_.size() + row_index];
  const size_t list = layout_.list(layer, entry.kv_head);
  if (missing == 0 || !sequence.working_set->NeedsDelta(list, positions_[row_index])) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected delta entry of layer ", layer, ", kv head ", entry.kv_head));
  }
  const uint16_t known = wire::kDeltaFirst | wire::kDeltaLast | wire::kDeltaMassIsBound | wire::kDeltaMembers;
  if ((entry.flags & ~known) != 0 || ((entry.flags & wire::kDeltaFirst) == 0 && entry.num_selected > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("delta entry with flags ", entry.flags, " and ", entry.num_selected, " selected rows"));
  }
  PayloadReader reader(payload, *offset);
  WINNOW_ASSIGN_OR_RETURN(auto selected, reader.Array<uint32_t>(entry.num_selected, alignof(uint32_t)));
  const size_t num_members = (entry.flags & wire::kDeltaMembers) != 0 ? entry.num_selected : 0;
  WINNOW_ASSIGN_OR_RETURN(auto members, reader.Array<QueryHeadMask>(num_members, alignof(uint32_t)));
  WINNOW_ASSIGN_OR_RETURN(auto streamed, reader.Array<uint32_t>(entry.num_streamed, alignof(uint32_t)));
  WINNOW_ASSIGN_OR_RETURN(auto local, reader.Array<wire::LocalRow>(entry.num_local, alignof(uint32_t)));
  const size_t rows_bytes = entry.num_streamed * layout_.row_bytes();
  WINNOW_ASSIGN_OR_RETURN(auto bytes,
                          reader.Array<std::byte>(rows_bytes, entry.num_streamed > 0 ? wire::kRowAlignment : 1));
  *offset = wire::AlignUp(reader.offset(), alignof(uint32_t));

  WorkingSet& working_set = *sequence.working_set;
  if (entry.flags & wire::kDeltaFirst) {
    WINNOW_RETURN_IF_ERROR(working_set.SetSelection(layer, entry.kv_head, positions_[row_index], selected, members));
    sequence.selection_lookups += entry.num_selected;
    sequence.selection_hits += entry.num_selected;
    step_lookups_ += entry.num_selected;
    if (!std::isnan(entry.captured_mass)) {
      sequence.mass.Add(entry.captured_mass);
      metrics_.ObserveMass(layer, entry.captured_mass);
      const bool is_bound = (entry.flags & wire::kDeltaMassIsBound) != 0;
      sequence.mass_is_bound |= is_bound;
      metrics_.mass_bounds += is_bound;
    }
  }
  WINNOW_RETURN_IF_ERROR(working_set.CommitLocal(layer, entry.kv_head, positions_[row_index], local));
  WINNOW_RETURN_IF_ERROR(working_set.CommitStreamed(layer, entry.kv_head, streamed, bytes.data()));
  sequence.selection_hits -= entry.num_streamed;
  sequence.streamed_rows += entry.num_streamed;
  sequence.streamed_bytes += rows_bytes;
  step_streamed_ += entry.num_streamed;
  if (entry.flags & wire::kDeltaLast) --missing;
  return absl::OkStatus();
}

void DecodeStep::Finish() {
  active_ = false;
  metrics_.selection_lookups += step_lookups_;
  metrics_.selection_hits += step_lookups_ - step_streamed_;
  metrics_.streamed_rows += step_streamed_;
  for (Row& row : rows_) {
    if (!row.sequence->failure.ok()) continue;
    ++row.sequence->next_position;
    ++row.sequence->decode_steps;
    if (row.dense_lists == 0) continue;
    row.sequence->mass.Add(1.0, row.dense_lists);
    row.sequence->mass_before.Add(1.0, row.dense_lists);
  }
}

}  // namespace winnow
