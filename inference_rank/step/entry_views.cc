#include "inference_rank/step/entry_views.h"

#include <cstring>

#include "inference_rank/step/payload_reader.h"

namespace winnow {

absl::StatusOr<DeltaEntryView> ReadDeltaEntry(std::span<const std::byte> payload, size_t row_bytes, size_t* offset) {
  PayloadReader reader(payload, *offset);
  WINNOW_ASSIGN_OR_RETURN(auto entries, reader.Array<wire::DeltaEntry>(1, alignof(uint32_t)));
  DeltaEntryView view;
  wire::DeltaEntry& entry = view.entry;
  std::memcpy(&entry, entries.data(), sizeof entry);
  const uint16_t known =
      wire::kDeltaFirst | wire::kDeltaLast | wire::kDeltaMassIsBound | wire::kDeltaMembers | wire::kDeltaPositions;
  if ((entry.flags & ~known) != 0 || (!view.begins() && entry.num_selected > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("delta entry with flags ", entry.flags, " and ", entry.num_selected, " selected rows"));
  }
  WINNOW_ASSIGN_OR_RETURN(view.selected, reader.Array<uint32_t>(entry.num_selected, alignof(uint32_t)));
  const size_t num_members = (entry.flags & wire::kDeltaMembers) != 0 ? entry.num_selected : 0;
  WINNOW_ASSIGN_OR_RETURN(view.members, reader.Array<QueryHeadMask>(num_members, alignof(uint32_t)));
  WINNOW_ASSIGN_OR_RETURN(view.streamed, reader.Array<uint32_t>(entry.num_streamed, alignof(uint32_t)));
  const size_t num_positions = (entry.flags & wire::kDeltaPositions) != 0 ? entry.num_streamed : 0;
  WINNOW_ASSIGN_OR_RETURN(view.positions, reader.Array<uint32_t>(num_positions, alignof(uint32_t)));
  WINNOW_ASSIGN_OR_RETURN(view.local, reader.Array<wire::LocalRow>(entry.num_local, alignof(uint32_t)));
  const size_t rows_alignment = entry.num_streamed > 0 ? wire::kRowAlignment : 1;
  WINNOW_ASSIGN_OR_RETURN(view.rows, reader.Array<std::byte>(entry.num_streamed * row_bytes, rows_alignment));
  *offset = wire::AlignUp(reader.offset(), alignof(uint32_t));
  return view;
}

absl::StatusOr<PartialEntryView> ReadPartialEntry(std::span<const std::byte> payload, size_t state_floats,
                                                  size_t* offset) {
  PayloadReader reader(payload, *offset);
  WINNOW_ASSIGN_OR_RETURN(auto entries, reader.Array<wire::PartialEntry>(1, alignof(uint32_t)));
  PartialEntryView view;
  wire::PartialEntry& entry = view.entry;
  std::memcpy(&entry, entries.data(), sizeof entry);
  const bool known =
      entry.flags == 0 || entry.flags == wire::kPartialMissedTopK || entry.flags == wire::kPartialWidened;
  const bool corrected = entry.flags != 0;
  if (!known || corrected != (entry.rows_read > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("verification with flags ", entry.flags, " and ", entry.rows_read, " rows"));
  }
  WINNOW_ASSIGN_OR_RETURN(view.state, reader.Array<float>(corrected ? state_floats : 0, alignof(float)));
  *offset = reader.offset();
  return view;
}

}  // namespace winnow
