// What a fake rank does with what comes, and what it finds wrong with it.
#include <algorithm>
#include <cstring>

#include "tests/cache_rank/fake_rank.h"

namespace winnow::test {

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
    case wire::FrameType::kBatchRowAnswer:
      batch_row_answers.emplace_back(header.sequence_id, (header.flags & wire::kBatchRowGranted) != 0);
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
  if (header.plan != plan_) return Expect(false, "verification of another plan");
  const KvLayout& layout = cluster_->shape.layout;
  size_t offset = 0;
  const auto read = [&](auto* values, size_t count) {
    Expect(offset + count * sizeof *values <= frame.payload().size(), "verifications are cut off");
    std::memcpy(values, frame.payload().data() + offset, count * sizeof *values);
    offset += count * sizeof *values;
  };
  for (uint32_t i = 0; i < header.row_count; ++i) {
    FakeSequence::Verification verification;
    read(&verification.entry, 1);
    if (verification.entry.rows_read > 0) {
      verification.o.resize(layout.group_size() * layout.head_dim);
      verification.lse.resize(layout.group_size());
      read(verification.o.data(), verification.o.size());
      read(verification.lse.data(), verification.lse.size());
    }
    FakeSequence& sequence = *rows_.at(verification.entry.plan_row);
    const size_t list = header.layer_first * layout.num_kv_heads + verification.entry.kv_head;
    Expect(sequence.verifications[sequence.next_position].emplace(list, verification).second, "second verification");
  }
  Expect(offset == frame.payload().size(), "verifications have a rest");
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
