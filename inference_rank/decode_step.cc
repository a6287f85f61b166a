#include "inference_rank/decode_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/check.h"
#include "inference_rank/payload_reader.h"

namespace winnow {
namespace {

constexpr char kGone[] = "the cache rank is gone";

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
  hidden_lookahead_ = 0;
  first_ahead_layer_ = 0;
  waits_for_partials_ = false;
  judged_layer_ = -1;
  step_lookups_ = 0;
  step_streamed_ = 0;
  rows_.clear();
  num_groups_ = 0;
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
    const bool predicts = selects && sequence->spec.predictor == Predictor::kDepth;
    const bool projects_there = sequence->spec.projection == Projection::kCacheRank;
    if (predicts) (projects_there ? hidden_lookahead_ : lookahead_) = static_cast<int>(sequence->spec.lookahead);
    for (const ShardLink& shard : sequence->shards) {
      Group& group = GroupOf(shard.link.get());
      group.members.push_back({static_cast<int>(rows_.size()), shard.shard});
      group.needs_queries |= UsesQueries(sequence->spec);
      group.needs_predictions |= predicts && !projects_there;
      group.needs_hidden |= predicts && projects_there;
    }
    const bool judged = WaitsForVerdict(sequence->spec) && sparse;
    waits_for_partials_ |= judged;
    rows_.push_back({.sequence = sequence, .dense_lists = dense_lists, .judged = judged, .poisoned = false});
    token_ids_.push_back(sequence->token_at(position));
    positions_.push_back(position);
  }
  for (size_t i = 0; i < num_groups_; ++i) {
    if (absl::Status posted = PostPlan(groups_[i]); !posted.ok()) Poison(groups_[i], posted);
  }
}

DecodeStep::Group& DecodeStep::GroupOf(CacheLink* link) {
  for (size_t i = 0; i < num_groups_; ++i) {
    if (groups_[i].link == link) return groups_[i];
  }
  if (num_groups_ == groups_.size()) groups_.emplace_back();
  Group& group = groups_[num_groups_++];
  group.link = link;
  group.members.clear();
  group.needs_queries = group.needs_predictions = group.needs_hidden = false;
  return group;
}

absl::Status DecodeStep::PostPlan(const Group& group) {
  const size_t count = group.members.size();
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer,
                          AwaitSendBuffer(transport_, *group.link, count * sizeof(wire::PlanRow), waits_));
  auto* plan_rows = reinterpret_cast<wire::PlanRow*>(buffer.payload().data());
  for (size_t i = 0; i < count; ++i) {
    const auto& [index, shard] = group.members[i];
    const Row& row = rows_[index];
    plan_rows[i] = {.sequence_id = row.sequence->sequence_id,
                    .attach_epoch = row.sequence->FindShard(*group.link)->attach_epoch,
                    .position = positions_[index],
                    .token_id = token_ids_[index],
                    .pool_slots = row.sequence->working_set->pool_slots(shard),
                    .grant_generation = 1,
                    .flags = row.dense_lists == layout_.num_lists() ? wire::kPlanAttendsEverything : 0,
                    .first_kv_head = static_cast<uint16_t>(shard.first_kv_head),
                    .num_kv_heads = static_cast<uint16_t>(shard.num_kv_heads),
                    .first_layer = static_cast<uint16_t>(shard.first_layer),
                    .num_layers = static_cast<uint16_t>(shard.num_layers)};
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kStepPlan;
  header.plan = plan_;
  header.row_count = static_cast<uint32_t>(count);
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
  return hidden_lookahead_ > 0 && HiddenTarget(layer) < layout_.num_layers;
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
  for (size_t i = 0; i < num_groups_; ++i) {
    const Group& group = groups_[i];
    const absl::Status posted = group.link->alive() ? PostLayer(group, output) : absl::UnavailableError(kGone);
    if (!posted.ok()) Poison(group, posted);
  }
}

absl::Status DecodeStep::PostLayer(const Group& group, const DecodeLayerOutput& output) {
  const size_t row_bytes = layout_.row_bytes();
  const size_t query_heads = layout_.num_query_heads, head_bytes = layout_.head_dim * sizeof(float);
  wire::FrameHeader header{};
  header.type = wire::FrameType::kLayer;
  header.plan = plan_;
  header.layer_first = static_cast<uint16_t>(output.layer);
  header.row_count = static_cast<uint32_t>(group.members.size());
  sections_.Clear();
  // Of the rows whose shard has the section's layer.
  const auto add = [&](uint32_t flag, int layer, auto part_of) {
    sections_.BeginSection();
    for (const Member& member : group.members) {
      if (!member.shard.HasLayer(layer)) continue;
      const auto [from, bytes] = part_of(member);
      sections_.Add(from, bytes);
      header.flags |= flag;
    }
  };
  const auto queries_of = [&](const float* queries) {
    return [&, first = reinterpret_cast<const std::byte*>(queries)](const Member& member) {
      const size_t first_head = static_cast<size_t>(member.shard.first_kv_head) * layout_.group_size();
      return std::pair(first + (member.row * query_heads + first_head) * head_bytes,
                       static_cast<size_t>(member.shard.num_kv_heads) * layout_.group_size() * head_bytes);
    };
  };
  add(wire::kSectionAppend, output.layer, [&](const Member& member) {
    const size_t first = static_cast<size_t>(member.row) * layout_.num_kv_heads + member.shard.first_kv_head;
    return std::pair(output.kv_rows + first * row_bytes, member.shard.num_kv_heads * row_bytes);
  });
  if (group.needs_queries) add(wire::kSectionQuery, output.layer, queries_of(output.q_pre_rope));
  if (group.needs_predictions && output.prediction != nullptr) {
    header.prediction_layer = static_cast<uint16_t>(output.prediction_layer);
    add(wire::kSectionPrediction, output.prediction_layer, queries_of(output.prediction));
  }
  if (group.needs_hidden && NeedsHidden(output.layer)) {
    header.prediction_layer = static_cast<uint16_t>(HiddenTarget(output.layer));
    add(wire::kSectionHidden, header.prediction_layer, [&](const Member& member) {
      return std::pair(output.hidden + static_cast<size_t>(member.row) * output.hidden_size,
                       output.hidden_size * sizeof(float));
    });
  }
  if (header.flags == 0) return absl::OkStatus();  // nothing of the layer is there
  WINNOW_ASSIGN_OR_RETURN(SendBuffer buffer, AwaitSendBuffer(transport_, *group.link, sections_.bytes(), waits_));
  sections_.WriteTo(buffer.payload());
  return group.link->channel()->Post(header, std::move(buffer));
}

void DecodeStep::Poison(int row, const absl::Status& status) {
  rows_[row].poisoned = true;
  rows_[row].sequence->Fail(status, /*can_retry=*/true);
}

void DecodeStep::Poison(const Group& group, const absl::Status& status) {
  for (const Member& member : group.members) Poison(member.row, status);
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
    for (size_t i = 0; i < num_groups_; ++i) {
      if (!groups_[i].link->alive()) Poison(groups_[i], absl::UnavailableError(kGone));
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
        Poison(static_cast<int>(row), absl::DeadlineExceededError(absl::StrCat("no delta for layer ", layer)));
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
      Poison(static_cast<int>(i) / layout_.num_kv_heads,
             absl::DeadlineExceededError(absl::StrCat("no verdict for layer ", layer)));
    }
  };
  WaitUntil(
      Span::kAwaitVerdict, judged_layer_, [&] { return Judged(); }, give_up, metrics_.partial_wait_us);
  return partials_;
}

const DecodeStep::Group* DecodeStep::FindGroup(const CacheLink& link) const {
  for (size_t i = 0; i < num_groups_; ++i) {
    if (groups_[i].link == &link) return &groups_[i];
  }
  return nullptr;
}

absl::StatusOr<int> DecodeStep::RowOf(const Group& group, uint32_t plan_row, int layer, int kv_head) const {
  if (plan_row < group.members.size()) {
    const auto& [row, shard] = group.members[plan_row];
    if (shard.HasLayer(layer) && shard.HasHead(kv_head)) return row;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("plan row ", plan_row, ", layer ", layer, ", kv head ", kv_head, " is not of this cache rank"));
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
    WINNOW_ASSIGN_OR_RETURN(const int row, RowOf(*group, entry.plan_row, header.layer_first, entry.kv_head));
    const bool known =
        entry.flags == 0 || entry.flags == wire::kPartialMissedTopK || entry.flags == wire::kPartialWidened;
    const bool corrected = entry.flags != 0;
    if (!known || corrected != (entry.rows_read > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("verdict with flags ", entry.flags, " and ", entry.rows_read, " rows"));
    }
    WINNOW_ASSIGN_OR_RETURN(auto state, reader.Array<float>(corrected ? state_floats : 0, alignof(float)));
    WINNOW_RETURN_IF_ERROR(TakeVerdict(row, header.layer_first, entry, state));
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
  const Group* group = FindGroup(link);
  if (group == nullptr) return absl::InvalidArgumentError("delta from a cache rank that is not in the plan");
  size_t offset = 0;
  for (uint32_t i = 0; i < header.row_count; ++i) {
    PayloadReader reader(frame.payload(), offset);
    WINNOW_ASSIGN_OR_RETURN(auto entries, reader.Array<wire::DeltaEntry>(1, alignof(uint32_t)));
    wire::DeltaEntry entry;
    std::memcpy(&entry, entries.data(), sizeof entry);
    WINNOW_ASSIGN_OR_RETURN(const int row, RowOf(*group, entry.plan_row, header.layer_first, entry.kv_head));
    offset = reader.offset();
    WINNOW_RETURN_IF_ERROR(CommitEntry(row, header.layer_first, entry, frame.payload(), &offset));
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
