#include "inference_rank/step/decode_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/selection/rows_alone.h"

namespace winnow {
namespace {

constexpr char kGone[] = "the cache rank is gone";
constexpr std::chrono::milliseconds kLongestWait(5);
// About what a GPU takes to fetch a frame's rows.
constexpr std::chrono::microseconds kFetch(50);

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

void Trace(size_t list, uint32_t position, const DeltaEntryView& delta, SelectionTrace& trace) {
  if (delta.begins()) trace.OnSelected(list, delta.selected);
  for (const wire::LocalRow& row : delta.local) trace.OnCopied(list, row.pool_index, row.position);
  trace.OnStreamed(list, delta.streamed, delta.positions);
  if (!std::isnan(delta.entry.captured_mass)) trace.OnMass(position - 1, delta.entry.captured_mass);
}

bool UsesQueries(const SelectionSpec& spec) {
  return !IsDense(spec) && spec.predictor != Predictor::kFixed && !SelectsFromAll(spec);
}

}  // namespace

DecodeStep::DecodeStep(Transport& transport, const KvLayout& layout, InferenceRankMetrics& metrics,
                       const DataPlaneWaits& waits)
    : transport_(transport),
      layout_(layout),
      metrics_(metrics),
      waits_(waits),
      sender_(transport, layout, waits),
      rows_sender_(transport, layout, waits),
      verifications_(layout) {}

void DecodeStep::Begin(uint64_t plan, std::span<Sequence* const> sequences) {
  plan_ = plan;
  active_ = true;
  lookahead_ = 0;
  hidden_lookahead_ = 0;
  first_ahead_layer_ = 0;
  waits_for_partials_ = false;
  verifications_.Reset();
  step_lookups_ = 0;
  step_streamed_ = 0;
  rows_.clear();
  plans_.Clear();
  token_ids_.clear();
  positions_.clear();
  missing_.assign(sequences.size() * layout_.num_layers, 0);
  for (Sequence* sequence : sequences) {
    const uint32_t position = sequence->next_position;
    WorkingSet& set = *sequence->working_set;
    set.Advance(position);
    if (sequence->trace) sequence->trace->BeginStep(position, set.attach_position());
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
    FrameStepRow row{.sequence = sequence,
                     .position = position,
                     .token_id = sequence->token_at(position),
                     .dense_lists = dense_lists};
    row.verified = WaitsForVerification(sequence->spec) && sparse;
    row.sends_alone = SendsAlone(row, selects, needs_delta);
    waits_for_partials_ |= row.verified;
    rows_.push_back(row);
    token_ids_.push_back(row.token_id);
    positions_.push_back(position);
    if (row.sends_alone) continue;
    const int row_index = static_cast<int>(rows_.size()) - 1;
    for (const ShardLink& shard : sequence->shards) {
      LinkPlan& part = plans_.Of(shard.link.get());
      part.members.push_back({row_index, shard.shard});
      part.needs_queries |= UsesQueries(sequence->spec);
      part.needs_index_queries |= selects && SelectsFromAll(sequence->spec);
      part.needs_predictions |= predicts && !projects_there;
      part.needs_hidden |= predicts && projects_there;
    }
  }
  const bool keeps_rows =
      std::any_of(rows_.begin(), rows_.end(), [](const FrameStepRow& row) { return row.sends_alone; });
  if (keeps_rows) kept_rows_.resize(rows_.size() * layout_.num_lists() * layout_.row_bytes());
  for (const LinkPlan& part : plans_.all()) {
    if (absl::Status posted = sender_.PostPlan(plan_, part, rows_); !posted.ok()) Poison(part, posted);
  }
}

bool DecodeStep::SendsAlone(const FrameStepRow& row, bool selects, bool needs_delta) const {
  const SelectionSpec& spec = row.sequence->spec;
  return row.dense_lists == layout_.num_lists() && !selects && !needs_delta && NeedsRowsAlone(spec) &&
         spec.prefetch == Prefetch::kNone && StepRowsSender::FitsFrame(layout_);
}

void DecodeStep::KeepRows(const DecodeLayerOutput& output) {
  const size_t bytes = layout_.num_kv_heads * layout_.row_bytes();
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (!rows_[row].sends_alone) continue;
    std::memcpy(kept_rows_.data() + (row * layout_.num_layers + output.layer) * bytes, output.kv_rows + row * bytes,
                bytes);
  }
}

void DecodeStep::SendKeptRows() {
  sent_alone_.clear();
  const size_t bytes = layout_.num_lists() * layout_.row_bytes();
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (!rows_[row].sends_alone || !Waits(static_cast<int>(row))) continue;
    sent_alone_.push_back({.sequence = rows_[row].sequence,
                           .position = rows_[row].position,
                           .token_id = rows_[row].token_id,
                           .kv_rows = kept_rows_.data() + row * bytes});
  }
  if (!sent_alone_.empty()) rows_sender_.Send(sent_alone_);
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
  if (waits_for_partials_) AwaitVerificationsOn(output.layer);
  KeepRows(output);
  const size_t row_bytes = layout_.row_bytes();
  for (size_t row = 0; row < rows_.size() && !output.rows_are_resident; ++row) {
    for (int head = 0; head < layout_.num_kv_heads; ++head) {
      rows_[row].sequence->working_set->WriteRow(output.layer, head, positions_[row],
                                                 output.kv_rows + (row * layout_.num_kv_heads + head) * row_bytes);
    }
  }
  for (LinkPlan& part : plans_.all()) {
    const int hidden_target = NeedsHidden(output.layer) ? HiddenTarget(output.layer) : layout_.num_layers;
    absl::Status posted = part.link->alive() ? WithdrawFailedRows(part) : absl::UnavailableError(kGone);
    if (posted.ok()) posted = sender_.PostLayer(plan_, part, output, hidden_target);
    if (!posted.ok()) Poison(part, posted);
  }
}

absl::Status DecodeStep::WithdrawFailedRows(LinkPlan& part) {
  for (LinkPlan::Member& member : part.members) {
    if (member.withdrawn || Waits(member.row)) continue;
    WINNOW_RETURN_IF_ERROR(sender_.PostWithdrawal(plan_, *part.link, *rows_[member.row].sequence));
    member.withdrawn = true;
  }
  return absl::OkStatus();
}

void DecodeStep::AwaitVerificationsOn(int layer) {
  verifications_.BeginLayer(layer, rows_.size());
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (!rows_[row].verified) continue;
    const WorkingSet& set = *rows_[row].sequence->working_set;
    for (int head = 0; head < layout_.num_kv_heads; ++head) {
      if (set.IsSparse(layout_.list(layer, head), rows_[row].position))
        verifications_.Await(static_cast<int>(row), head);
    }
  }
}

void DecodeStep::Poison(int row, const absl::Status& status) {
  rows_[row].poisoned = true;
  rows_[row].sequence->Fail(status, /*can_retry=*/true);
}

void DecodeStep::Poison(const LinkPlan& part, const absl::Status& status) {
  for (const LinkPlan::Member& member : part.members) Poison(member.row, status);
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

bool DecodeStep::Verified() const {
  for (int row = 0; row < static_cast<int>(rows_.size()); ++row) {
    if (verifications_.Misses(row) && Waits(row)) return false;
  }
  return true;
}

void DecodeStep::NoteAwaited() {
  for (const LinkPlan& part : plans_.all()) {
    if (!part.link->alive()) Poison(part, absl::UnavailableError(kGone));
    part.link->MarkAwaited();
  }
}

bool DecodeStep::CheckFrame() {
  if (unchecked_.empty()) return false;
  const UncheckedFrame oldest = std::move(unchecked_.front());
  unchecked_.pop_front();
  if (const absl::Status status = transport_.CheckPayload(*oldest.frame); !status.ok()) {
    ++metrics_.malformed_frames;
    if (const LinkPlan* part = plans_.Find(*oldest.link)) Poison(*part, status);
    oldest.link->channel()->Close();
    oldest.link->MarkDead();
  }
  return true;
}

bool DecodeStep::ReleaseFrames() {
  return rows_.front().sequence->working_set->ReleaseRead();  // all have theirs in one pool
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
    NoteAwaited();
    if (done()) break;
    if (!unchecked_.empty() && transport_.Progress() == 0 && CheckFrame()) continue;
    if (done()) break;
    transport_.Wait(ReleaseFrames() ? kLongestWait : kFetch, waits_.spin);
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

bool DecodeStep::PollSlots(int layer) {
  if (!Complete(layer)) {
    NoteAwaited();
    ReleaseFrames();
    transport_.Progress();
  }
  return Complete(layer);
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
  WINNOW_CHECK(layer == verifications_.layer());
  const auto give_up = [&] {
    for (int row = 0; row < static_cast<int>(rows_.size()); ++row) {
      if (!verifications_.Misses(row)) continue;
      Poison(row, absl::DeadlineExceededError(absl::StrCat("no verification for layer ", layer)));
    }
  };
  WaitUntil(
      Span::kAwaitVerification, layer, [&] { return Verified(); }, give_up, metrics_.partial_wait_us);
  return verifications_.partials();
}

absl::StatusOr<const LinkPlan*> DecodeStep::PartOf(const CacheLink& link, const wire::FrameHeader& header) {
  if (!active_ || header.plan != plan_) {
    ++metrics_.stale_frames;  // of a step that gave up on it
    return nullptr;
  }
  if (const LinkPlan* part = plans_.Find(link)) return part;
  return absl::InvalidArgumentError("a frame from a cache rank that is not in the plan");
}

absl::Status DecodeStep::OnPartial(const CacheLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  WINNOW_ASSIGN_OR_RETURN(const LinkPlan* part, PartOf(link, header));
  if (part == nullptr) return absl::OkStatus();
  size_t offset = 0;
  for (uint32_t i = 0; i < header.row_count; ++i) {
    WINNOW_ASSIGN_OR_RETURN(const auto verification,
                            ReadPartialEntry(frame.payload(), verifications_.state_floats(), &offset));
    const wire::PartialEntry& entry = verification.entry;
    WINNOW_ASSIGN_OR_RETURN(const int row, part->RowOf(entry.plan_row, header.layer_first, entry.kv_head));
    WINNOW_RETURN_IF_ERROR(TakeVerification(row, header.layer_first, verification));
  }
  if (offset != frame.payload().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(header.row_count, " verifications end at byte ", offset, " of ", frame.payload().size()));
  }
  return absl::OkStatus();
}

absl::Status DecodeStep::TakeVerification(int row_index, int layer, const PartialEntryView& verification) {
  const FrameStepRow& row = rows_[row_index];
  if (!row.verified || layer > verifications_.layer()) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected verification on layer ", layer));
  }
  if (!Waits(row_index)) return absl::OkStatus();  // too late: its result is discarded
  WINNOW_RETURN_IF_ERROR(verifications_.Take(layer, row_index, verification));
  const wire::PartialEntry& entry = verification.entry;
  Sequence& sequence = *row.sequence;
  if (!std::isnan(entry.mass_before)) {
    sequence.mass_before.Add(entry.mass_before);
    metrics_.captured_mass[layer].Observe(entry.mass_before);
  }
  if (!std::isnan(entry.mass_after)) {
    sequence.mass.Add(entry.mass_after);
    if (sequence.trace) sequence.trace->OnMass(row.position, entry.mass_after);
  }
  sequence.missed_top_k_corrections += (entry.flags & wire::kPartialMissedTopK) != 0;
  sequence.widened_corrections += (entry.flags & wire::kPartialWidened) != 0;
  sequence.correction_rows += entry.rows_read;
  return absl::OkStatus();
}

absl::Status DecodeStep::OnDelta(const CacheLink& link, ReceivedFrame frame) {
  const wire::FrameHeader header = frame.header();
  WINNOW_ASSIGN_OR_RETURN(const LinkPlan* part, PartOf(link, header));
  if (part == nullptr) return absl::OkStatus();
  const TimelineSpan span(metrics_.timeline, Span::kTakeRows, header.layer_first, plan_, header.row_count);
  const std::span<const std::byte> payload = frame.payload();
  std::shared_ptr<const void> keep;
  if (frame.is_pinned()) {
    const bool is_checked = frame.payload_is_checked();
    const auto held = std::make_shared<const ReceivedFrame>(std::move(frame));
    if (!is_checked) unchecked_.push_back({part->link, held});
    keep = held;
  }
  size_t offset = 0;
  for (uint32_t i = 0; i < header.row_count; ++i) {
    WINNOW_ASSIGN_OR_RETURN(const auto delta, ReadDeltaEntry(payload, layout_.row_bytes(), &offset));
    WINNOW_ASSIGN_OR_RETURN(const int row, part->RowOf(delta.entry.plan_row, header.layer_first, delta.entry.kv_head));
    WINNOW_RETURN_IF_ERROR(Commit(row, header.layer_first, delta, keep));
  }
  return absl::OkStatus();
}

absl::Status DecodeStep::Commit(int row_index, int layer, const DeltaEntryView& delta,
                                const std::shared_ptr<const void>& keep) {
  const wire::DeltaEntry& entry = delta.entry;
  const uint32_t position = positions_[row_index];
  Sequence& sequence = *rows_[row_index].sequence;
  WorkingSet& working_set = *sequence.working_set;
  uint16_t& missing = missing_[layer * rows_.size() + row_index];
  if (missing == 0 || !working_set.NeedsDelta(layout_.list(layer, entry.kv_head), position)) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected delta entry of layer ", layer, ", kv head ", entry.kv_head));
  }
  if (delta.begins()) {
    WINNOW_RETURN_IF_ERROR(working_set.SetSelection(layer, entry.kv_head, position, delta.selected, delta.members));
    sequence.selection_lookups += entry.num_selected;
    sequence.selection_hits += entry.num_selected;
    step_lookups_ += entry.num_selected;
    if (!std::isnan(entry.captured_mass)) {
      sequence.mass.Add(entry.captured_mass);
      metrics_.captured_mass[layer].Observe(entry.captured_mass);
      const bool is_bound = (entry.flags & wire::kDeltaMassIsBound) != 0;
      sequence.mass_is_bound |= is_bound;
      metrics_.mass_bounds += is_bound;
    }
  }
  WINNOW_RETURN_IF_ERROR(working_set.CommitLocal(layer, entry.kv_head, position, delta.local));
  WINNOW_RETURN_IF_ERROR(working_set.CommitStreamed(layer, entry.kv_head, delta.streamed, delta.rows.data(), keep));
  if (sequence.trace) Trace(layout_.list(layer, entry.kv_head), position, delta, *sequence.trace);
  sequence.selection_hits -= entry.num_streamed;
  sequence.streamed_rows += entry.num_streamed;
  sequence.streamed_bytes += delta.rows.size();
  step_streamed_ += entry.num_streamed;
  if (delta.ends()) --missing;
  return absl::OkStatus();
}

void DecodeStep::Finish() {
  while (CheckFrame()) {
  }
  active_ = false;
  SendKeptRows();
  metrics_.selection_lookups += step_lookups_;
  metrics_.selection_hits += step_lookups_ - step_streamed_;
  metrics_.streamed_rows += step_streamed_;
  for (const FrameStepRow& row : rows_) {
    if (!row.sequence->failure.ok()) continue;
    ++row.sequence->next_position;
    ++row.sequence->decode_steps;
    if (row.dense_lists == 0) continue;
    row.sequence->mass.Add(1.0, row.dense_lists);
    row.sequence->mass_before.Add(1.0, row.dense_lists);
  }
}

}  // namespace winnow
