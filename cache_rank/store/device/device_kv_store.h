#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "cache_rank/store/device/device_kv_shape.h"
#include "kernels/device/arena.h"
#include "kernels/plugin/device_table.h"

namespace winnow {

// The KV of a cache rank's sequences in the memory of its GPU: rows in blocks, the index of their keys, the images of
// what inference ranks hold, and past queries. All memory is taken at start; a sequence takes its blocks when it is
// opened, for its greatest length, so that nothing can fail in a step. Host code decides here, kernels read and write:
// work on a sequence is ordered by the stream that it is enqueued on. One thread.
class DeviceKvStore {
 public:
  // RESOURCE_EXHAUSTED says what takes how much. `table` and `device` outlive the store.
  // RowTier::kInPlace: rows are blocks of the slot pool `slots`, of the layout's dtype, or null where nothing may read
  // them. Of int8 `slot_scales` has their scales (device::Int8Slots).
  static absl::StatusOr<std::unique_ptr<DeviceKvStore>> Create(const device::DeviceTable* table, device::Device* device,
                                                               const DeviceKvShape& shape, void* slots = nullptr,
                                                               const float* slot_scales = nullptr);

  // One without memory: what others take beside a store follows from its shape.
  static std::unique_ptr<DeviceKvStore> Unallocated(const DeviceKvShape& shape);

  // A new, empty sequence, < max_sequences, that nobody holds rows of. RESOURCE_EXHAUSTED, and nothing changes, when
  // it has no place; OUT_OF_RANGE beyond the shape's max_positions.
  absl::StatusOr<uint32_t> Open(uint32_t max_positions, device::Stream stream);
  // The same for RowTier::kInPlace, as that sequence, which is not open, and whose blocks are the inference rank's:
  // [num_lists][blocks of max_positions] numbers in the slot pool. Whoever else has some of them has the same `index`
  // (IndexIn), or none.
  absl::Status OpenAt(uint32_t sequence, uint32_t max_positions, std::span<const uint32_t> blocks,
                      const DeviceIndex& index, device::Stream stream);
  // Gives its blocks back. Nothing that was enqueued may touch the sequence any longer.
  void Release(uint32_t sequence);

  // Appends rows [first, first + count) of one layer: [num_kv_heads][count][2 * head_dim] bf16 in device memory. Null
  // `rows`, with RowTier::kInPlace: they lie in their blocks, and are indexed.
  absl::Status AppendRange(uint32_t sequence, int layer, uint32_t first, uint32_t count, const void* rows,
                           device::Stream stream);
  // The bounds of the groups of pages among rows [0, end) of one layer, which are indexed already: of blocks that come
  // from other sequences (AppendRange bounds those that it completes).
  void BoundGroups(uint32_t sequence, int layer, uint32_t end, device::Stream stream);
  // The queries of positions [end - count, end) of one layer before RoPE, [count][num_query_heads][head_dim] in any
  // memory, count <= ring_queries: of all layers the same positions, before anything is predicted. Enqueued copies.
  absl::Status LoadPastQueries(uint32_t sequence, int layer, uint32_t end, uint32_t count, const float* queries,
                               device::Stream stream);
  // The other way, those that are kept.
  void ReadPastQueries(uint32_t sequence, int layer, uint32_t end, uint32_t count, float* queries,
                       device::Stream stream) const;

  // Before another inference rank holds the sequence: its pools are empty.
  void ForgetResidency(uint32_t sequence, device::Stream stream);
  // Copies the slot pages of the inference rank's lists: [num_lists][pages_per_list], as many as reach the pool's end.
  // INVALID_ARGUMENT where there are more than peer_pages().
  absl::Status SetPeerPages(uint32_t sequence, std::span<const uint32_t> pages, device::Stream stream);

  const DeviceKvShape& shape() const { return shape_; }
  uint64_t free_blocks() const { return free_blocks_.size() + free_dram_blocks_.size(); }
  // Blocks whose rows lie in the GPU's memory, and in DRAM; those that sequences have.
  struct BlockUse {
    uint64_t device = 0, device_used = 0, dram = 0, dram_used = 0;
  };
  BlockUse block_use() const;
  bool is_open(uint32_t sequence) const { return sequence < sequences_.size() && sequences_[sequence].is_open; }
  uint32_t max_positions(uint32_t sequence) const { return sequences_[sequence].max_positions; }

  // What kernels take. Pointers hold for the store's life. Of sequences with the store's own index, or with `index`:
  device::KeyStore keys() const { return keys(shape_.key_copy); }  // the copy where there is one
  device::KeyStore keys(bool of_copy) const;
  device::PageStore pages() const { return pages(shape_.own_index()); }
  device::PageStore pages(const DeviceIndex& index) const;
  device::AppendParams append_params() const { return append_params(shape_.own_index()); }
  device::AppendParams append_params(const DeviceIndex& index) const;  // what to append is the caller's to add
  // Stores the rows of a launch and indexes them; null rows are indexed where they lie.
  void Append(device::Stream stream, const device::AppendParams& append, const DeviceIndex& index) const;
  device::QueryRings query_rings(int layer) const;
  const uint32_t* first_query_positions() const { return arrays_.first_query_positions; }  // [max_sequences]
  const void* row_pool() const { return arrays_.rows; }
  const uint32_t* blocks() const { return arrays_.block_tables; }
  uint32_t FirstBlock(uint32_t sequence, size_t list) const;  // in blocks()
  device::ResidencyList Residency(uint32_t sequence, size_t list) const;
  const uint32_t* PeerPages(uint32_t sequence, size_t list) const;

 private:
  struct Arrays {
    void* rows = nullptr;                       // null: elsewhere; [num_blocks][32][2 * head_dim] bf16
    const float* row_scales = nullptr;          // [num_blocks][32][2] of rows of int8
    void* key_copy = nullptr;                   // [num_blocks][32][head_dim] fp8; or other pages' bounds (IndexIn)
    float* key_scales = nullptr;                // [num_blocks][32]
    void* bounds = nullptr;                     // [num_blocks][32 / page_tokens][2 * head_dim] bf16; or cuboids
    void* group_bounds = nullptr;               // [max_sequences][num_lists][groups of blocks_per_list][2 * head_dim]
    uint32_t* block_tables = nullptr;           // [max_sequences][num_lists][blocks_per_list]
    uint32_t* position_of = nullptr;            // [max_sequences][num_lists][pool_slots]
    uint32_t* last_plan = nullptr;              // [max_sequences][num_lists][pool_slots]
    uint32_t* peer_pages = nullptr;             // [max_sequences][num_lists][peer_pages]
    float* past_queries = nullptr;              // [num_layers][max_sequences][ring_queries][num_query_heads][head_dim]
    uint32_t* first_query_positions = nullptr;  // [max_sequences]
    // Of AppendRange, so that calls for several sequences may overlap.
    device::SelectionList* range_lists = nullptr;  // [max_sequences][num_lists], first_block alone
    uint32_t* range_positions = nullptr;           // [max_sequences][num_kv_heads]
  };
  struct Sequence {
    bool is_open = false;
    uint32_t max_positions = 0;
    DeviceIndex index;
    std::vector<uint32_t> blocks;
  };

  DeviceKvStore(const device::DeviceTable* table, device::Device* device, const DeviceKvShape& shape);
  device::AppendParams RangeParams(uint32_t sequence, int layer, uint32_t first, uint32_t count, device::Stream stream);
  absl::Status CheckLength(uint32_t max_positions) const;
  // Calls `copy` for each run of the queries of positions [end - count, end) in their ring: its place, and the floats
  // before it and in it.
  template <typename Copy>
  void ForEachRun(uint32_t sequence, int layer, uint32_t end, uint32_t count, Copy copy) const;
  void SetBlocks(uint32_t sequence, std::span<const uint32_t> blocks, device::Stream stream);
  absl::Status Allocate();
  void Carve(device::Arena& arena);
  size_t list_index(uint32_t sequence, size_t list) const { return sequence * shape_.layout.num_lists() + list; }

  const device::DeviceTable* const table_;
  device::Device* const device_;
  const DeviceKvShape shape_;
  std::unique_ptr<device::DeviceMemory> memory_;
  std::unique_ptr<device::DeviceMemory> far_rows_;  // RowTier::kPinnedHost, or with dram_blocks
  Arrays arrays_;
  std::vector<Sequence> sequences_;
  std::vector<uint32_t> free_blocks_;       // the next one last
  std::vector<uint32_t> free_dram_blocks_;  // taken when there is none of those
};

}  // namespace winnow
