#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "cache_rank/select/host/select_head.h"
#include "cache_rank/step/batch_selector.h"
#include "cache_rank/store/device/device_kv_store.h"
#include "kernels/plugin/device_table.h"

namespace winnow {

// Selects on a GPU for a cache rank whose rows lie in host memory: the GPU keeps the index alone, keys in fp8 and the
// bounds of pages of 16, and answers each batch of one layer with positions. Rows are indexed when a selection first
// needs them, from where the host stores them: the prompt once, then a row per position.
class DeviceIndexSelector final : public BatchSelector {
 public:
  struct Options {
    size_t memory_bytes = 0;  // of the GPU, for the index; 0: nine tenths of what is free
    uint32_t max_sequences = 64;
    uint32_t max_positions = 131072;  // of one sequence; longer ones are not taken
    uint32_t max_budget = 4096;
    int max_items = 16;  // of one Select
    std::function<void(const absl::Status&)> on_failure = [](const absl::Status&) {};
  };

  // FAILED_PRECONDITION for rows that are not bf16 and heads that kernels do not know, RESOURCE_EXHAUSTED where the
  // index of a single sequence would not fit. `table` outlives it.
  static absl::StatusOr<std::unique_ptr<DeviceIndexSelector>> Create(const device::DeviceTable* table,
                                                                     std::unique_ptr<device::Device> device,
                                                                     const KvLayout& layout,
                                                                     const SelectionModel& model,
                                                                     const Options& options);

  bool Takes(const CachedSequence& sequence) override;
  absl::Status Select(int layer, std::span<const Item> items) override;
  void Forget(uint64_t sequence_id) override;
  void Retain(const std::function<bool(uint64_t)>& stays) override;

  uint64_t free_blocks() const { return store_->free_blocks(); }

 private:
  // The index of one attachment of a sequence.
  struct IndexedSequence {
    uint32_t sequence = 0;  // in the store
    uint32_t attach_epoch = 0;
    std::vector<uint32_t> rows;  // [num_layers] that are indexed
  };
  // What Select sends and gets, at the same offsets in pinned and in device memory.
  struct Exchange {
    uint16_t* rows = nullptr;                // [max_items][num_kv_heads][2 * head_dim] of one position each
    float* queries = nullptr;                // [max_items][num_query_heads][head_dim]
    device::SelectionList* lists = nullptr;  // [max_items][num_kv_heads]
    uint32_t* positions = nullptr;           // [max_items][num_kv_heads]
    uint32_t* counts = nullptr;              // [max_items][num_kv_heads]
    uint32_t* selected = nullptr;            // [max_items][num_kv_heads][max_budget]
  };

  DeviceIndexSelector(const device::DeviceTable* table, std::unique_ptr<device::Device> device, const KvLayout& layout,
                      const SelectionModel& model, const Options& options);
  absl::Status Allocate();
  void Carve(device::Arena& arena, Exchange& exchange);
  absl::Status SelectOrFail(int layer, std::span<const Item> items);
  absl::Status IndexUpTo(IndexedSequence& indexed, const CachedSequence& sequence, int layer, uint32_t end);
  void FillItem(int layer, size_t index, const Item& item);
  device::SelectParams SelectParams(const SelectionSpec& spec, size_t first, size_t count, uint32_t max_keys) const;
  size_t num_lists() const { return static_cast<size_t>(options_.max_items) * layout_.num_kv_heads; }

  const device::DeviceTable* const table_;
  const std::unique_ptr<device::Device> device_;
  const KvLayout layout_;
  const SelectionModel model_;
  const Options options_;
  const device::Stream stream_;
  std::unique_ptr<DeviceKvStore> store_;
  std::unique_ptr<device::DeviceMemory> host_memory_, device_memory_, scratch_;
  std::unique_ptr<device::DeviceMemory> host_chunk_, device_chunk_;  // rows of IndexUpTo
  Exchange host_, device_side_;
  std::unordered_map<uint64_t, IndexedSequence> indexed_;
};

}  // namespace winnow
