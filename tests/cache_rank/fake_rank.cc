#include "tests/cache_rank/fake_rank.h"

#include <gtest/gtest.h>

#include <cstring>

#include "common/base/check.h"

namespace winnow::test {
namespace {

uint32_t Ring(const SelectionSpec& spec) {
  return wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens);
}

void AppendBytes(std::vector<std::byte>& payload, const std::vector<float>& values) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  payload.insert(payload.end(), bytes, bytes + values.size() * sizeof(float));
}

}  // namespace

FakeRank::FakeRank(TestCluster* cluster, size_t window_bytes) : cluster_(cluster) {
  static uint64_t incarnation = 100;
  transport_ = NewInprocTransport({.incarnation = ++incarnation, .window_bytes = window_bytes, .ucx_tls = ""});
  transport_->SetHandler([this](Channel&, ReceivedFrame frame) {
    const wire::FrameType type = frame.header().type;
    const bool refill = type == wire::FrameType::kRefill || type == wire::FrameType::kRefillDone;
    if (refill && keeps_refills) return kept_refills.push_back(std::move(frame));
    OnFrame(frame);
  });
  channel_ = transport_->NewChannel().value();
  std::unique_ptr<Channel> theirs = cluster->transport->NewChannel().value();
  WINNOW_CHECK(channel_->Connect(theirs->LocalAddress()).ok());
  WINNOW_CHECK(theirs->Connect(channel_->LocalAddress()).ok());
  link_ = cluster->data_plane->OpenLink("inference-0", std::move(theirs), nullptr);
}

FakeRank::~FakeRank() {
  kept_refills.clear();
  channel_->Close();
  channel_.reset();
}

std::string FakeRank::Errors() const {
  std::string all;
  for (const std::string& error : errors) all += error + "; ";
  return all;
}

void FakeRank::Send(const wire::FrameHeader& header, const std::vector<std::byte>& payload) {
  absl::StatusOr<SendBuffer> buffer = channel_->Allocate(payload.size());
  WINNOW_CHECK(buffer.ok());
  if (!payload.empty()) std::memcpy(buffer->payload().data(), payload.data(), payload.size());
  WINNOW_CHECK(channel_->Post(header, *std::move(buffer)).ok());
}

FakeSequence::Row FakeRank::Row(FakeSequence& sequence, int layer, int head, uint32_t position) {
  FakeSequence::Row row = cluster_->TruthRow(sequence.seed, layer, head, position);
  FakeSequence::List& list = sequence.lists[layer * cluster_->shape.layout.num_kv_heads + head];
  list.position_of[{row[0], row[1]}] = position;
  return row;
}

FakeSequence* FakeRank::Prefill(uint64_t id, uint64_t seed, const SelectionSpec& spec, uint32_t prompt_tokens,
                                uint32_t max_positions) {
  const KvLayout& layout = cluster_->shape.layout;
  auto owned = std::make_unique<FakeSequence>();
  FakeSequence& sequence = *owned;
  sequence.max_positions = max_positions;
  sequence.id = id;
  sequence.seed = seed;
  sequence.spec = spec;
  sequence.group_size = layout.group_size();
  sequence.prompt_tokens = sequence.next_position = sequence.attach_position = prompt_tokens;
  sequence.lists.resize(layout.num_layers * layout.num_kv_heads);
  sequence.attach_epoch = cluster_->data_plane
                              ->OpenSequence(link_, {.sequence_id = id,
                                                     .spec = spec,
                                                     .max_positions = sequence.max_positions,
                                                     .prompt_tokens = prompt_tokens,
                                                     .sampling = {}})
                              .value()
                              .attach_epoch;
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (uint32_t first = 0; first < prompt_tokens; first += 50) {
      const uint32_t count = std::min(50u, prompt_tokens - first);
      std::vector<std::byte> payload;
      for (int head = 0; head < layout.num_kv_heads; ++head) {
        for (uint32_t p = first; p < first + count; ++p) {
          const FakeSequence::Row row = Row(sequence, layer, head, p);
          AppendBytes(payload, row);
          if (p + Ring(spec) >= prompt_tokens) sequence.lists[layer * layout.num_kv_heads + head].ring[p] = row;
        }
      }
      wire::FrameHeader header{};
      header.type = wire::FrameType::kAppendRange;
      header.sequence_id = id;
      header.attach_epoch = sequence.attach_epoch;
      header.apply_position = first;
      header.layer_first = static_cast<uint16_t>(layer);
      header.row_count = count;
      Send(header, payload);
      cluster_->transport->Progress();
    }
    const bool blends = spec.predictor == Predictor::kTemporal || spec.prefetch == Prefetch::kTemporal;
    const uint32_t queries = std::min(prompt_tokens, blends ? spec.window + 1 : 1);
    std::vector<std::byte> payload;
    for (uint32_t p = prompt_tokens - queries; p < prompt_tokens; ++p)
      AppendBytes(payload, cluster_->TruthQuery(seed, layer, p));
    wire::FrameHeader header{};
    header.type = wire::FrameType::kPromptQueries;
    header.sequence_id = id;
    header.attach_epoch = sequence.attach_epoch;
    header.apply_position = prompt_tokens - queries;
    header.layer_first = static_cast<uint16_t>(layer);
    header.row_count = queries;
    Send(header, payload);
  }
  return (sequences_[id] = std::move(owned)).get();
}

FakeSequence* FakeRank::Attach(const FakeSequence& old, uint32_t max_restart) {
  auto owned = std::make_unique<FakeSequence>();
  FakeSequence& sequence = *owned;
  sequence.id = old.id;
  sequence.seed = old.seed;
  sequence.spec = old.spec;
  sequence.group_size = old.group_size;
  sequence.prompt_tokens = old.prompt_tokens;
  sequence.max_positions = old.max_positions;
  sequence.lists.resize(old.lists.size());
  sequence.refill_done_at = kNoPosition;
  FakeSequence* result = (sequences_[old.id] = std::move(owned)).get();
  const DataPlane::Attached attached = cluster_->data_plane->AttachSequence(link_, old.id, max_restart).value();
  sequence.attach_epoch = attached.attach_epoch;
  sequence.next_position = sequence.attach_position = attached.restart_position;
  Expect(cluster_->PumpUntil(*this, [&] { return sequence.refill_done_at == attached.restart_position; }),
         "no RefillDone");
  return result;
}

FakeSequence* FakeRank::Fork(const FakeSequence& source, uint64_t id) {
  auto owned = std::make_unique<FakeSequence>(source);
  owned->id = id;
  owned->attach_epoch =
      cluster_->data_plane->ForkSequence(link_, source.id, id, source.max_positions).value().attach_epoch;
  for (FakeSequence::List& list : owned->lists) list.pool.clear();
  owned->attach_position = owned->next_position;
  owned->selections.clear();
  owned->deltas.clear();
  owned->masses.clear();
  owned->verdicts.clear();
  return (sequences_[id] = std::move(owned)).get();
}

void FakeRank::SendPlan(const std::vector<FakeSequence*>& rows) {
  static uint64_t next_plan = 1;
  plan_ = next_plan++;
  rows_ = rows;
  missing_.clear();
  pending_.clear();
  const KvLayout& layout = cluster_->shape.layout;
  std::vector<std::byte> payload;
  for (size_t i = 0; i < rows.size(); ++i) {
    FakeSequence& sequence = *rows[i];
    const uint32_t position = sequence.next_position;
    uint32_t dense_lists = 0, pool_slots = 0;
    const size_t per_head = sequence.lists_per_head();
    std::vector<std::vector<uint32_t>> kept(sequence.lists.size() * per_head);
    for (size_t list = 0; list < sequence.lists.size(); ++list) {
      const int layer = static_cast<int>(list) / layout.num_kv_heads,
                head = static_cast<int>(list) % layout.num_kv_heads;
      pool_slots += sequence.Pool(list);
      // Where no delta comes the selection stays.
      const auto before = sequence.selections.find(position - 1);
      const bool awaited = NeedsDelta(sequence.spec, list, position, sequence.prompt_tokens, sequence.attach_position);
      missing_[{layer, static_cast<int>(i)}] += awaited;
      if (!awaited && before != sequence.selections.end()) {
        for (size_t i = list * per_head; i < (list + 1) * per_head; ++i) kept[i] = before->second[i];
      }
      if (!sequence.Everything(list, position)) continue;
      // Both sides know: pool index k holds sinks + k below the recent window.
      ++dense_lists;
      for (uint32_t p = sequence.spec.sink_tokens; p < sequence.Window(position); ++p) {
        sequence.lists[list].pool[p - sequence.spec.sink_tokens] = Row(sequence, layer, head, p);
      }
    }
    const bool everything = dense_lists == sequence.lists.size();
    if (!everything) {
      sequence.selections[position] = std::move(kept);
      sequence.masses[position].assign(sequence.lists.size(), NAN);
    }
    const wire::PlanRow row{.sequence_id = sequence.id,
                            .attach_epoch = sequence.attach_epoch,
                            .position = position,
                            .token_id = 1000 + position,
                            .pool_slots = pool_slots,
                            .grant_generation = 1,
                            .flags = everything ? wire::kPlanAttendsEverything : 0,
                            .first_kv_head = 0,
                            .num_kv_heads = static_cast<uint16_t>(cluster_->shape.layout.num_kv_heads),
                            .first_layer = 0,
                            .num_layers = static_cast<uint16_t>(cluster_->shape.layout.num_layers)};
    const auto* bytes = reinterpret_cast<const std::byte*>(&row);
    payload.insert(payload.end(), bytes, bytes + sizeof row);
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kStepPlan;
  header.plan = plan_;
  header.row_count = static_cast<uint32_t>(rows.size());
  Send(header, payload);
}

void FakeRank::SendLayer(int layer, bool with_queries) {
  const KvLayout& layout = cluster_->shape.layout;
  std::vector<std::byte> payload;
  for (FakeSequence* sequence : rows_) {
    const uint32_t position = sequence->next_position;
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      const FakeSequence::Row row = Row(*sequence, layer, head, position);
      std::map<uint32_t, FakeSequence::Row>& ring = sequence->lists[layer * layout.num_kv_heads + head].ring;
      ring[position] = row;
      if (position >= Ring(sequence->spec)) ring.erase(position - Ring(sequence->spec));
      AppendBytes(payload, row);
    }
  }
  payload.resize(wire::AlignUp(payload.size(), wire::kRowAlignment));
  for (FakeSequence* sequence : rows_) {
    if (with_queries) AppendBytes(payload, cluster_->TruthQuery(sequence->seed, layer, sequence->next_position));
  }
  wire::FrameHeader header{};
  header.type = wire::FrameType::kLayer;
  header.flags = wire::kSectionAppend | (with_queries ? wire::kSectionQuery : 0);
  const int target = layer + static_cast<int>(rows_[0]->spec.lookahead);
  if (target < layout.num_layers && rows_[0]->spec.projection == Projection::kCacheRank) {
    header.flags |= wire::kSectionHidden;
    header.prediction_layer = static_cast<uint16_t>(target);
    payload.resize(wire::AlignUp(payload.size(), wire::kRowAlignment));
    for (FakeSequence* sequence : rows_) {
      AppendBytes(payload,
                  cluster_->TruthHidden(sequence->seed, layer, sequence->next_position, cluster_->hidden_size_));
    }
  } else if (target < layout.num_layers) {
    header.flags |= wire::kSectionPrediction;
    header.prediction_layer = static_cast<uint16_t>(target);
    payload.resize(wire::AlignUp(payload.size(), wire::kRowAlignment));
    for (FakeSequence* sequence : rows_) {
      AppendBytes(payload, cluster_->prediction_
                               ? cluster_->prediction_(sequence->seed, target, sequence->next_position)
                               : cluster_->TruthPrediction(sequence->seed, target, sequence->next_position));
    }
  }
  header.plan = plan_;
  header.layer_first = static_cast<uint16_t>(layer);
  header.row_count = static_cast<uint32_t>(rows_.size());
  Send(header, payload);
}

bool FakeRank::DeltasComplete(int layer) const {
  for (size_t row = 0; row < rows_.size(); ++row) {
    const auto missing = missing_.find({layer, static_cast<int>(row)});
    if (missing != missing_.end() && missing->second > 0) return false;
  }
  return true;
}

bool FakeRank::VerdictsComplete(int layer) const {
  const int heads = cluster_->shape.layout.num_kv_heads;
  for (const FakeSequence* sequence : rows_) {
    if (!WaitsForVerdict(sequence->spec)) continue;
    const auto verdicts = sequence->verdicts.find(sequence->next_position);
    for (int head = 0; head < heads; ++head) {
      if (!IsSparse(sequence->spec, layer * heads + head, sequence->next_position, sequence->prompt_tokens)) continue;
      if (verdicts == sequence->verdicts.end() || verdicts->second.count(layer * heads + head) == 0) return false;
    }
  }
  return true;
}

void FakeRank::FinishPlan() {
  for (FakeSequence* sequence : rows_) ++sequence->next_position;
  rows_.clear();
  missing_.clear();
}

bool FakeRank::Decode(const std::vector<FakeSequence*>& rows, int layers) {
  SendPlan(rows);
  const int end = layers < 0 ? cluster_->shape.layout.num_layers : layers;
  for (int layer = 0; layer < end; ++layer) {
    SendLayer(layer);
    if (!cluster_->PumpUntil(*this, [&] { return DeltasComplete(layer) && VerdictsComplete(layer); })) return false;
  }
  if (layers >= 0) return true;
  const auto stored = [&] {
    for (FakeSequence* sequence : rows) {
      if (watermarks[sequence->id] <= sequence->next_position) return false;
    }
    return true;
  };
  if (!cluster_->PumpUntil(*this, stored)) return false;
  FinishPlan();
  return true;
}

void FakeRank::OnFrame(const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  switch (header.type) {
    case wire::FrameType::kDelta:
      return header.phase == wire::Phase::kPrefetch ? OnPrefetch(frame) : OnDelta(frame);
    case wire::FrameType::kPartial:
      return OnPartial(frame);
    case wire::FrameType::kRefill:
      return OnRefill(frame);
    case wire::FrameType::kRefillDone:
      sequences_.at(header.sequence_id)->refill_done_at = header.apply_position;
      return;
    case wire::FrameType::kWatermark:
      for (uint32_t i = 0; i < header.row_count; ++i) {
        wire::WatermarkEntry entry;
        std::memcpy(&entry, frame.payload().data() + i * sizeof entry, sizeof entry);
        watermarks[entry.sequence_id] = entry.watermark;
        working_set_rows[entry.sequence_id] = entry.working_set_rows;
        fast_rows_bytes = entry.fast_rows_bytes;
      }
      return;
    case wire::FrameType::kPrefixStates: {
      const auto* floats = reinterpret_cast<const float*>(frame.payload().data());
      prefix_states.push_back({header, {floats, floats + frame.payload().size() / sizeof(float)}});
      return;
    }
    case wire::FrameType::kFenced:
      fenced.emplace_back(header.sequence_id, header.attach_epoch);
      return;
    case wire::FrameType::kTransferFailed:
      failed.emplace_back(header.sequence_id, header.layer_first);
      return;
    default:
      Expect(false, "unexpected frame");
  }
}

void FakeRank::OnDelta(const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  if (header.plan != plan_) return Expect(false, "delta of another plan");
  ++delta_frames;
  largest_delta = std::max(largest_delta, frame.payload().size());
  const KvLayout& layout = cluster_->shape.layout;
  const std::byte* payload = frame.payload().data();
  size_t offset = 0;
  for (uint32_t i = 0; i < header.row_count; ++i) {
    offset = wire::AlignUp(offset, 4);
    wire::DeltaEntry entry;
    std::memcpy(&entry, payload + offset, sizeof entry);
    offset += sizeof entry;
    std::vector<uint32_t> selected(entry.num_selected), streamed(entry.num_streamed);
    FakeSequence& sequence = *rows_.at(entry.plan_row);
    const bool has_members = sequence.lists_per_head() > 1 && entry.num_selected > 0;
    Expect(((entry.flags & wire::kDeltaMembers) != 0) == has_members, "masks of query heads come with their selection");
    std::vector<QueryHeadMask> members(has_members ? entry.num_selected : 0);
    std::vector<wire::LocalRow> local(entry.num_local);
    auto read = [&](auto& values) {
      const size_t bytes = values.size() * sizeof(values[0]);
      if (bytes > 0) std::memcpy(values.data(), payload + offset, bytes);
      offset += bytes;
    };
    read(selected);
    read(members);
    offset = wire::AlignUp(offset, 4);
    read(streamed);
    read(local);
    const size_t list_index = header.layer_first * layout.num_kv_heads + entry.kv_head;
    FakeSequence::List& list = sequence.lists[list_index];
    const uint32_t position = sequence.next_position;
    auto write = [&](uint32_t index, const FakeSequence::Row& row) {
      Expect(index < sequence.Pool(list_index), "pool index outside the grant");
      for (const auto& [other, held] : list.pool) {
        const bool sent_again = sequence.spec.transfer == Transfer::kFull && other == index;
        Expect(held != row || sent_again, "row was resident already");
      }
      list.pool[index] = row;
    };
    for (const wire::LocalRow& row : local) {
      Expect(row.position + Ring(sequence.spec) > position && list.ring.count(row.position) == 1,
             "local row is not in the ring");
      write(row.pool_index, list.ring[row.position]);
    }
    if (entry.num_streamed > 0) offset = wire::AlignUp(offset, wire::kRowAlignment);
    for (const uint32_t index : streamed) {
      FakeSequence::Row row(2 * layout.head_dim);
      std::memcpy(row.data(), payload + offset, layout.row_bytes());
      offset += layout.row_bytes();
      const auto known = list.position_of.find({row[0], row[1]});
      if (known == list.position_of.end()) return Expect(false, "streamed bytes are no row of this list");
      Expect(row == cluster_->TruthRow(sequence.seed, header.layer_first, entry.kv_head, known->second),
             "row bytes differ");
      Expect(known->second + Ring(sequence.spec) <= position || sequence.spec.transfer == Transfer::kFull,
             "streamed a row of the ring");
      write(index, row);
    }
    sequence.streamed_rows += streamed.size();
    sequence.local_rows += local.size();
    PendingSelection& whole = pending_[{header.layer_first, entry.plan_row, entry.kv_head}];
    if (entry.flags & wire::kDeltaFirst) {
      whole = {selected, members};
      sequence.masses[position][list_index] = entry.captured_mass;
      if (entry.flags & wire::kDeltaMassIsBound) sequence.bounded.insert({position, list_index});
    }
    if ((entry.flags & wire::kDeltaLast) == 0) continue;
    Expect(--missing_[{header.layer_first, static_cast<int>(entry.plan_row)}] >= 0, "a delta that is not awaited");
    Expect(sequence.deltas.insert({position, list_index}).second, "a second delta of a list");
    TakeSelection(sequence, header.layer_first, entry.kv_head, whole);
  }
  Expect(offset == frame.payload().size(), "payload has a rest");
}

// May come at any time: what the newest selection's list names must stay as it is.
void FakeRank::OnPrefetch(const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  const KvLayout& layout = cluster_->shape.layout;
  Expect(header.plan == 0 && header.row_count == 1, "a prefetch is of no plan and one head");
  FakeSequence& sequence = *sequences_.at(header.sequence_id);
  if (header.attach_epoch != sequence.attach_epoch) return;
  wire::DeltaEntry entry;
  std::memcpy(&entry, frame.payload().data(), sizeof entry);
  Expect(entry.num_selected == 0 && entry.num_local == 0 && entry.num_streamed > 0, "a prefetch carries rows alone");
  const size_t list_index = header.layer_first * layout.num_kv_heads + entry.kv_head;
  const uint32_t pool_slots = sequence.Pool(list_index);
  FakeSequence::List& list = sequence.lists[list_index];
  Expect(!list.attended.empty(), "prefetch before the first selection");
  size_t offset = sizeof entry + entry.num_streamed * sizeof(uint32_t);
  offset = wire::AlignUp(offset, wire::kRowAlignment);
  for (uint32_t i = 0; i < entry.num_streamed; ++i) {
    uint32_t index;
    std::memcpy(&index, frame.payload().data() + sizeof entry + i * sizeof index, sizeof index);
    FakeSequence::Row row(2 * layout.head_dim);
    std::memcpy(row.data(), frame.payload().data() + offset + i * layout.row_bytes(), layout.row_bytes());
    const auto known = list.position_of.find({row[0], row[1]});
    if (known == list.position_of.end()) return Expect(false, "prefetched bytes are no row of this list");
    Expect(row == cluster_->TruthRow(sequence.seed, header.layer_first, entry.kv_head, known->second),
           "prefetched bytes differ");
    Expect(index < pool_slots, "prefetch outside the grant");
    Expect(list.attended.count(index) == 0, "prefetch into a slot that attention may be reading");
    for (const auto& [other, held] : list.pool)
      Expect(other >= pool_slots || held != row, "prefetched row was resident already");
    list.pool[index] = row;
    ++sequence.prefetched_rows;
  }
  Expect(offset + entry.num_streamed * layout.row_bytes() == frame.payload().size(), "prefetch payload has a rest");
}

void FakeRank::OnPartial(const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  if (header.plan != plan_) return Expect(false, "verdict of another plan");
  const KvLayout& layout = cluster_->shape.layout;
  size_t offset = 0;
  const auto read = [&](auto* values, size_t count) {
    Expect(offset + count * sizeof *values <= frame.payload().size(), "verdicts are cut off");
    std::memcpy(values, frame.payload().data() + offset, count * sizeof *values);
    offset += count * sizeof *values;
  };
  for (uint32_t i = 0; i < header.row_count; ++i) {
    FakeSequence::Verdict verdict;
    read(&verdict.entry, 1);
    if (verdict.entry.rows_read > 0) {
      verdict.o.resize(layout.group_size() * layout.head_dim);
      verdict.lse.resize(layout.group_size());
      read(verdict.o.data(), verdict.o.size());
      read(verdict.lse.data(), verdict.lse.size());
    }
    FakeSequence& sequence = *rows_.at(verdict.entry.plan_row);
    const size_t list = header.layer_first * layout.num_kv_heads + verdict.entry.kv_head;
    Expect(sequence.verdicts[sequence.next_position].emplace(list, verdict).second, "second verdict");
  }
  Expect(offset == frame.payload().size(), "verdicts have a rest");
}

void FakeRank::TakeSelection(FakeSequence& sequence, int layer, int head, const PendingSelection& selection) {
  const size_t list_index = layer * cluster_->shape.layout.num_kv_heads + head;
  FakeSequence::List& list = sequence.lists[list_index];
  const size_t per_head = sequence.lists_per_head();
  std::vector<uint32_t>* lists = &sequence.selections[sequence.next_position][list_index * per_head];
  for (size_t i = 0; i < per_head; ++i) lists[i].clear();
  list.attended = {selection.pool_indices.begin(), selection.pool_indices.end()};
  Expect(list.attended.size() == selection.pool_indices.size(), "a row is selected twice");
  for (size_t i = 0; i < selection.pool_indices.size(); ++i) {
    const auto row = list.pool.find(selection.pool_indices[i]);
    if (row == list.pool.end()) return Expect(false, "selected pool index holds nothing");
    const uint32_t position = list.position_of.at({row->second[0], row->second[1]});
    const uint32_t mask = selection.members.empty() ? 1 : selection.members[i];
    Expect(mask > 0 && mask < 1u << per_head, "a mask names no head of the group, or another");
    for (size_t head_list = 0; head_list < per_head; ++head_list) {
      if (mask >> head_list & 1) lists[head_list].push_back(position);
    }
  }
}

void FakeRank::OnRefill(const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  FakeSequence& sequence = *sequences_.at(header.sequence_id);
  const KvLayout& layout = cluster_->shape.layout;
  Expect(frame.payload().size() == header.row_count * layout.num_kv_heads * layout.row_bytes(), "refill size");
  for (int head = 0; head < layout.num_kv_heads; ++head) {
    for (uint32_t i = 0; i < header.row_count; ++i) {
      const uint32_t position = header.apply_position + i;
      FakeSequence::Row row(2 * layout.head_dim);
      std::memcpy(row.data(), frame.payload().data() + (head * header.row_count + i) * layout.row_bytes(),
                  layout.row_bytes());
      const size_t list = header.layer_first * layout.num_kv_heads + head;
      const bool kept = !Streams(sequence.spec, list) || position < sequence.spec.sink_tokens ||
                        position + Ring(sequence.spec) >= sequence.next_position;
      Expect(row == Row(sequence, header.layer_first, head, position) || !kept, "refilled bytes differ");
      sequence.lists[header.layer_first * layout.num_kv_heads + head].ring[position] = row;
      if (header.layer_first + 1 == layout.num_layers) sequence.refilled.insert(position);
    }
  }
  // The cache rank streams rows of the past, too: their positions are known from the truth.
  for (uint32_t p = 0; p < header.apply_position; ++p) {
    for (int head = 0; head < layout.num_kv_heads; ++head) (void)Row(sequence, header.layer_first, head, p);
  }
}

}  // namespace winnow::test
