#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "transport/wire/wire.h"

namespace winnow {

// Reads the entries of Delta and Partial frames, which cache_rank/stream/frame_entries.h writes, with every length
// checked. Arrays stay the payload's.

struct DeltaEntryView {
  wire::DeltaEntry entry;
  std::span<const uint32_t> selected;      // pool indices
  std::span<const QueryHeadMask> members;  // of them, or none
  std::span<const uint32_t> streamed;      // pool indices that `rows` go to
  std::span<const uint32_t> positions;     // of the same rows, or none
  std::span<const wire::LocalRow> local;
  std::span<const std::byte> rows;  // [streamed.size()][row_bytes]

  bool begins() const { return (entry.flags & wire::kDeltaFirst) != 0; }
  bool ends() const { return (entry.flags & wire::kDeltaLast) != 0; }
};

// Reads the entry at `offset`, which moves to where the next one begins. INVALID_ARGUMENT says what is malformed.
absl::StatusOr<DeltaEntryView> ReadDeltaEntry(std::span<const std::byte> payload, size_t row_bytes, size_t* offset);

struct PartialEntryView {
  wire::PartialEntry entry;
  std::span<const float> state;  // o [group_size, head_dim], lse [group_size]; empty without a correction
};

// Likewise; a state has `state_floats`.
absl::StatusOr<PartialEntryView> ReadPartialEntry(std::span<const std::byte> payload, size_t state_floats,
                                                  size_t* offset);

}  // namespace winnow
