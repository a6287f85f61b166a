#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache_rank/select/verify/verify_head.h"
#include "cache_rank/store/residency.h"
#include "cache_rank/store/sequence_kv.h"
#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "common/selection/selection_spec.h"
#include "transport/wire/wire.h"

namespace winnow {

// The entries of Delta and Partial frames (wire::DeltaEntry, wire::PartialEntry): how long they are, how deltas are cut
// into frames, and their bytes.

// INVALID_ARGUMENT when an entry of this specification could not be framed.
absl::Status CheckEntriesFit(const KvLayout& layout, const SelectionSpec& spec, uint32_t max_positions);

// One DeltaEntry: the delta of one list, or a part of it.
struct DeltaPart {
  const HeadDelta* delta = nullptr;
  const SequenceKv* kv = nullptr;  // whose rows are streamed, of this layer and kv head of it
  int layer = 0;
  int kv_head = 0;
  uint16_t kv_head_of_model = 0;
  uint32_t plan_row = 0;
  bool begins = false;  // carries the selection
  bool ends = false;    // and no other part follows
  uint32_t first = 0;   // the streamed rows [first, first + rows) go with it
  uint32_t rows = 0;
  bool tells_positions = false;  // of the streamed rows

  uint64_t RowBytes() const { return rows * kv->layout().row_bytes(); }
};

// Where an entry ends that begins at `offset` or at the next place that is aligned for it.
size_t DeltaPartEnd(size_t offset, const DeltaPart& part);
// Writes the header and index arrays of an entry, and moves `offset` behind its rows. Returns those, to be gathered.
WantedRows WriteDeltaPart(const DeltaPart& part, std::byte* payload, size_t* offset);

// The entries of one frame. It is filled to `frame_bytes`: small frames let the peer commit while later ones travel.
// An entry whose arrays alone are larger is a frame of its own, with one row.
class DeltaFrame {
 public:
  explicit DeltaFrame(size_t frame_bytes) : frame_bytes_(frame_bytes) {}
  DeltaFrame(DeltaFrame&&) = default;

  void Clear();
  // Adds a part whose `first` is set, with all rows from there on or as many as there is room for. False, and nothing
  // is added, when there is none, or when the part before did not end.
  bool Add(DeltaPart part);

  std::span<const DeltaPart> parts() const { return parts_; }
  size_t bytes() const { return bytes_; }
  uint64_t rows() const;
  // Of a sequence whose rows go with it.
  bool has_damage() const;
  // Writes all but the rows to `payload`, which has room for bytes(). Returns these: one for each part, to be gathered.
  std::span<const WantedRows> Write(std::byte* payload);
  // The CRC-32C of the payload, once the rows are there: theirs came with them.
  uint32_t Checksum(const std::byte* payload) const;

 private:
  const size_t frame_bytes_;
  std::vector<DeltaPart> parts_;
  size_t bytes_ = 0;
  // Of Write.
  std::vector<WantedRows> wanted_;
  std::vector<uint32_t> checksums_;  // of the parts of each of these
};

size_t PartialEntryBytes(const HeadPartial& partial);
// kv head: the model's.
void WritePartialEntry(const HeadPartial& partial, uint32_t plan_row, uint16_t kv_head, std::byte* payload,
                       size_t* offset);

}  // namespace winnow
