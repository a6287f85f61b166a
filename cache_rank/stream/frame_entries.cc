#include "cache_rank/stream/frame_entries.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "transport/wire/crc32c.h"

namespace winnow {
namespace {

// What the arrays of an entry have of a streamed row: its pool index and perhaps its position.
constexpr size_t NumbersPerRow(bool tells_positions) {
  return tells_positions ? 2 : 1;
}

// End of an entry's header and index arrays that begin at `offset`, where its rows go.
size_t RowsOffset(size_t offset, size_t selected, size_t members, size_t streamed, bool tells_positions, size_t local) {
  offset = wire::AlignUp(offset, alignof(wire::DeltaEntry)) + sizeof(wire::DeltaEntry);
  offset += (selected + streamed * NumbersPerRow(tells_positions)) * sizeof(uint32_t) + local * sizeof(wire::LocalRow);
  offset += wire::AlignUp(members * sizeof(QueryHeadMask), alignof(uint32_t));
  return streamed > 0 ? wire::AlignUp(offset, wire::kRowAlignment) : offset;
}

// Zeroes what alignment skips: payloads carry nothing but what was written.
void Pad(size_t alignment, std::byte* payload, size_t* offset) {
  const size_t aligned = wire::AlignUp(*offset, alignment);
  std::memset(payload + *offset, 0, aligned - *offset);
  *offset = aligned;
}

template <typename T>
void WriteArray(const T* values, size_t count, std::byte* payload, size_t* offset) {
  if (count > 0) std::memcpy(payload + *offset, values, count * sizeof(T));
  *offset += count * sizeof(T);
}

uint16_t ActionFlag(CorrectionAction action) {
  switch (action) {
    case CorrectionAction::kNone:
      return 0;
    case CorrectionAction::kMissedTopK:
      return wire::kPartialMissedTopK;
    case CorrectionAction::kWidened:
      return wire::kPartialWidened;
  }
  return 0;
}

// An entry's header and index arrays; moves `offset` to where its rows go.
void WriteNumbers(const DeltaPart& part, std::byte* payload, size_t* offset) {
  const HeadDelta& delta = *part.delta;
  const size_t members = part.begins ? delta.members.size() : 0;
  const wire::DeltaEntry entry{
      .plan_row = part.plan_row,
      .kv_head = part.kv_head_of_model,
      .flags = static_cast<uint16_t>((part.begins ? wire::kDeltaFirst : 0) | (part.ends ? wire::kDeltaLast : 0) |
                                     (delta.captured_mass_is_bound ? wire::kDeltaMassIsBound : 0) |
                                     (members > 0 ? wire::kDeltaMembers : 0) |
                                     (part.tells_positions ? wire::kDeltaPositions : 0)),
      .num_selected = part.begins ? static_cast<uint32_t>(delta.selected.size()) : 0,
      .num_streamed = part.rows,
      .num_local = part.begins ? static_cast<uint32_t>(delta.local.size()) : 0,
      .captured_mass = delta.captured_mass};
  Pad(alignof(wire::DeltaEntry), payload, offset);
  WriteArray(&entry, 1, payload, offset);
  WriteArray(delta.selected.data(), entry.num_selected, payload, offset);
  WriteArray(delta.members.data(), members, payload, offset);
  Pad(alignof(uint32_t), payload, offset);
  WriteArray(delta.streamed.data() + part.first, part.rows, payload, offset);
  if (part.tells_positions) WriteArray(delta.streamed_positions.data() + part.first, part.rows, payload, offset);
  WriteArray(delta.local.data(), entry.num_local, payload, offset);
  if (part.rows > 0) Pad(wire::kRowAlignment, payload, offset);
}

}  // namespace

absl::Status CheckEntriesFit(const KvLayout& layout, const SelectionSpec& spec, uint32_t max_positions) {
  const int group = layout.group_size();
  uint32_t most = UnionCeiling(spec, 0, group);
  for (size_t list = 1; list < spec.head_budgets.size(); ++list) most = std::max(most, UnionCeiling(spec, list, group));
  const size_t selected = std::min(most, max_positions);
  const size_t members = ListsPerKvHead(spec, group) > 1 ? selected : 0;
  const size_t local = std::min(wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens), max_positions);
  const size_t partial = sizeof(wire::PartialEntry) + wire::PartialStateBytes(group, layout.head_dim);
  if (WaitsForVerification(spec) && partial > wire::kMaxPayloadBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the attention state of ", group, " heads of ", layout.head_dim,
                                                   " elements does not fit frames of ", wire::kMaxPayloadBytes,
                                                   " bytes"));
  }
  // One streamed row at least has to fit beside the arrays.
  if (RowsOffset(0, selected, members, 1, true, local) + layout.row_bytes() <= wire::kMaxPayloadBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("selections of ", most, " rows and recent_tokens ", spec.recent_tokens,
                                                 " do not fit frames of ", wire::kMaxPayloadBytes, " bytes"));
}

size_t DeltaPartEnd(size_t offset, const DeltaPart& part) {
  const size_t selected = part.begins ? part.delta->selected.size() : 0;
  const size_t members = part.begins ? part.delta->members.size() : 0;
  const size_t local = part.begins ? part.delta->local.size() : 0;
  return RowsOffset(offset, selected, members, part.rows, part.tells_positions, local) + part.RowBytes();
}

WantedRows WriteDeltaPart(const DeltaPart& part, std::byte* payload, size_t* offset) {
  WriteNumbers(part, payload, offset);
  const std::span<const uint32_t> positions(part.delta->streamed_positions);
  const WantedRows rows{.kv = part.kv,
                        .layer = part.layer,
                        .head = part.kv_head,
                        .positions = positions.subspan(part.first, part.rows),
                        .out = payload + *offset};
  *offset += part.RowBytes();
  return rows;
}

void DeltaFrame::Clear() {
  parts_.clear();
  bytes_ = 0;
}

bool DeltaFrame::Add(DeltaPart part) {
  if (!parts_.empty() && !parts_.back().ends) return false;
  const uint32_t left = static_cast<uint32_t>(part.delta->streamed.size()) - part.first;
  part.rows = left > 0 ? 1 : 0;
  const size_t with_row = DeltaPartEnd(bytes_, part);
  const size_t limit = parts_.empty() ? std::max(frame_bytes_, with_row) : frame_bytes_;
  if (with_row > limit) return false;
  part.rows = left;
  if (DeltaPartEnd(bytes_, part) > limit) {
    // Each further row takes its numbers and its bytes; alignment may cost one row's worth.
    const size_t row_bytes = part.kv->layout().row_bytes();
    part.rows = 1 + static_cast<uint32_t>((limit - with_row) /
                                          (row_bytes + NumbersPerRow(part.tells_positions) * sizeof(uint32_t)));
    while (part.rows > 1 && DeltaPartEnd(bytes_, part) > limit) --part.rows;
  }
  part.ends = part.rows == left;
  bytes_ = DeltaPartEnd(bytes_, part);
  parts_.push_back(part);
  return true;
}

uint64_t DeltaFrame::rows() const {
  uint64_t rows = 0;
  for (const DeltaPart& part : parts_) rows += part.rows;
  return rows;
}

bool DeltaFrame::has_damage() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const DeltaPart& part) { return part.kv->is_damaged(); });
}

std::span<const WantedRows> DeltaFrame::Write(std::byte* payload) {
  size_t offset = 0, checksums = 0;
  wanted_.clear();
  for (const DeltaPart& part : parts_) {
    wanted_.push_back(WriteDeltaPart(part, payload, &offset));
    checksums += wanted_.back().parts();
  }
  WINNOW_CHECK(offset == bytes_);
  checksums_.resize(checksums);
  uint32_t* next = checksums_.data();
  for (WantedRows& rows : wanted_) {
    rows.checksums = next;
    next += rows.parts();
  }
  return wanted_;
}

uint32_t DeltaFrame::Checksum(const std::byte* payload) const {
  uint32_t checksum = 0;
  const std::byte* next = payload;
  for (const WantedRows& rows : wanted_) {
    checksum = SequenceKv::JoinChecksums(Crc32c({next, rows.out}, checksum), rows);
    next = rows.out + rows.positions.size() * rows.kv->layout().row_bytes();
  }
  return checksum;
}

size_t PartialEntryBytes(const HeadPartial& partial) {
  return sizeof(wire::PartialEntry) + (partial.o.size() + partial.lse.size()) * sizeof(float);
}

void WritePartialEntry(const HeadPartial& partial, uint32_t plan_row, uint16_t kv_head, std::byte* payload,
                       size_t* offset) {
  const wire::PartialEntry entry{.plan_row = plan_row,
                                 .kv_head = kv_head,
                                 .flags = ActionFlag(partial.action),
                                 .mass_before = partial.mass_before,
                                 .mass_after = partial.mass_after,
                                 .rows_read = partial.rows_read};
  WriteArray(&entry, 1, payload, offset);
  WriteArray(partial.o.data(), partial.o.size(), payload, offset);
  WriteArray(partial.lse.data(), partial.lse.size(), payload, offset);
}

}  // namespace winnow
