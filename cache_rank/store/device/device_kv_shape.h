#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/kv_layout.h"
#include "common/selection/selection_spec.h"
#include "kernels/device/params/selection.h"

namespace winnow {

// Where the blocks' rows lie. The index always lies in the GPU's memory.
enum class RowTier : uint8_t {
  kDevice,
  kIndexOnly,   // only the index is kept: nothing is pushed from here
  kPinnedHost,  // pushes gather from DRAM over PCIe; keys that are scored must have a copy then
  kInPlace,     // in the slots of an inference rank on the same GPU, which attends to them there: nothing is pushed
};

// What is kept of a sequence's keys, beside them, to select by.
struct DeviceIndex {
  bool key_copy = false;     // keys in fp8 (e4m3) with a scale each
  uint32_t page_tokens = 0;  // of pages whose bounds are kept; 0: none
  bool cuboids = false;      // those are cuboid-means in place of minima and maxima
  bool page_groups = false;  // bounds of groups of pages, too

  bool empty() const { return !key_copy && page_tokens == 0; }
  friend bool operator==(const DeviceIndex&, const DeviceIndex&) = default;
};

// What a cache rank's GPU holds, fixed at start: nothing is allocated after.
struct DeviceKvShape {
  KvLayout layout;  // rows of bf16, in place of int8, too: their keys are what is scored, and have no copy
  uint32_t max_sequences = 0;
  uint32_t max_positions = 0;  // of one sequence
  uint64_t num_blocks = 0;     // of kBlockTokens rows of one (layer, kv head)
  uint32_t pool_slots = 0;     // of one list's pool in an inference rank
  uint32_t slots_beside = 0;   // most slots that lie before the pool in the list's slot pages there
  bool key_copy = false;       // keys in fp8 (e4m3) with a scale each, which scorers read
  uint32_t page_tokens = 0;    // of pages whose bounds are kept; 0: none
  bool cuboids = false;        // those are cuboid-means in place of minima and maxima
  bool page_groups = false;    // bounds of groups of pages are kept, too, for max_positions of each sequence
  bool scores_keys = true;     // keys are read one by one, and not their pages' bounds alone
  uint32_t ring_queries = 0;   // past queries kept of each (sequence, layer)
  RowTier rows = RowTier::kDevice;
  uint64_t dram_blocks = 0;  // kDevice: of num_blocks, the last to be taken, whose rows lie in the host's DRAM

  // Entries of a list's table: with page_groups those of whole groups.
  uint32_t blocks_per_list() const {
    const uint32_t whole = page_groups ? device::GroupBlocks(page_tokens) : 1;
    const uint32_t blocks = (max_positions + kBlockTokens - 1) / kBlockTokens;
    return (blocks + whole - 1) / whole * whole;
  }
  // The index that memory is taken for, of every block. Another one may lie in its place (IndexIn).
  DeviceIndex own_index() const {
    return {.key_copy = key_copy, .page_tokens = page_tokens, .cuboids = cuboids, .page_groups = page_groups};
  }
  // Slot pages of a list up to its pool's end.
  uint32_t peer_pages() const { return (slots_beside + pool_slots + kSlotPageTokens - 1) / kSlotPageTokens; }
  // Blocks that a sequence of so many positions takes.
  uint64_t BlocksOf(uint32_t positions) const {
    return uint64_t{(positions + kBlockTokens - 1) / kBlockTokens} * layout.num_lists();
  }
};

// FAILED_PRECONDITION names what of a specification is not built for GPUs with rows in that tier.
absl::Status CheckDeviceSpec(const SelectionSpec& spec, RowTier rows = RowTier::kDevice);

// As many blocks as fit: of device_bytes their index takes a part, and rows the rest; rows of as many more lie in
// host_bytes of DRAM. 0 when tables alone do not fit.
void FitBlocks(size_t device_bytes, size_t host_bytes, DeviceKvShape* shape);

// True where two-stage selections of contexts of so many positions leave out groups of pages (page_groups.h).
bool LeavesOutGroups(const SelectionSpec& spec, uint32_t max_positions);

// True for a scorer that reads keys one by one, or a policy that does.
bool ScoresKeys(const SelectionSpec& spec);

// The index that sequences of a specification have in a store of that shape. With rows in place, where sequences of
// several specifications lie side by side, it is none where nothing of it would be read, the store's own where that has
// what is wanted, and else bounds of pages that find room in the place of the store's 8-bit keys, or of its own bounds:
// what lies there is then the sequence's to say. nullopt: there is no room for it.
std::optional<DeviceIndex> IndexIn(const DeviceKvShape& shape, const SelectionSpec& spec);
// Of a block, the place of bounds of other pages than the store's own.
size_t OtherBoundsBytes(const DeviceKvShape& shape);

// The shape that serves a specification, for sequences of at most max_positions that hold total_tokens together.
DeviceKvShape DeviceKvShapeFor(const SelectionSpec& spec, const KvLayout& layout, uint32_t max_sequences,
                               uint32_t max_positions, uint64_t total_tokens, RowTier rows = RowTier::kDevice);

struct DeviceKvBytes {
  size_t rows = 0;       // in the GPU's memory or, with RowTier::kPinnedHost, all of them in DRAM
  size_t dram_rows = 0;  // of dram_blocks
  size_t key_copy = 0;   // with scales
  size_t bounds = 0;     // of pages
  size_t group_bounds = 0;
  size_t tables = 0;     // of blocks, of lists, and of the pools' slot pages
  size_t residency = 0;  // images of the pools
  size_t past_queries = 0;
  size_t index() const { return key_copy + bounds + group_bounds + tables + residency + past_queries; }
};
DeviceKvBytes BytesOf(const DeviceKvShape& shape);

// RESOURCE_EXHAUSTED with the arithmetic, part by part, and how many tokens would fit.
absl::Status CheckDeviceMemory(const DeviceKvShape& shape, size_t free_device_bytes);

}  // namespace winnow
