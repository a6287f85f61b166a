#pragma once
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cache_rank/select/device/select_graph.h"
#include "tests/support/temp_dir.h"
#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

// A cache rank's GPU with random sequences, and what an inference rank's GPU would hold for it, on one device. All
// inputs are known to the host: rows, queries and residuals of every plan to come.
class CacheGpu {
 public:
  struct Options {
    SelectionSpec spec;
    KvLayout layout;
    int hidden_size = 256;
    std::vector<uint32_t> positions;  // that the first plan decodes, by row; kNoPosition: nobody sits there
    int num_plans = 3;
    RowTier rows = RowTier::kDevice;
    float key_spread = 1;  // standard deviation of the keys' elements
    uint64_t seed = 1;
  };
  // Of one plan, laid out as in CacheInbox.
  struct Inputs {
    std::vector<float> hidden, queries;
    std::vector<uint16_t> rows;
    float *device_hidden, *device_queries;  // the same on the device
    uint16_t* device_rows;
  };

  CacheGpu(GpuContext& gpu, const Options& options);

  // Copies a plan's inputs of one layer into the inbox: the residual, or rows and queries.
  void SendHidden(device::Stream stream, int plan, int layer);
  void SendRows(device::Stream stream, int plan, int layer);
  // Raises all flags for a plan at once.
  void RaiseAll(device::Stream stream, uint32_t number);

  int max_rows() const { return static_cast<int>(options_.positions.size()); }
  bool sits(int row) const { return options_.positions[row] != device::kNoPosition; }
  // Of every other one the prompt ends where the first plan begins.
  uint32_t prompt_tokens(int row) const { return row % 2 == 0 ? 0 : options_.positions[row]; }
  uint32_t position(int row, int plan) const { return options_.positions[row] + plan; }
  const SelectionSpec& spec() const { return options_.spec; }
  const KvLayout& layout() const { return options_.layout; }
  const Options& options() const { return options_; }
  // Stored rows of the sequence in a row of the plan, K then V in bf16.
  const uint16_t* Row(int row, size_t list, uint32_t position) const {
    return rows_[row][list].data() + position * size_t{2} * layout().head_dim;
  }
  // Queries before RoPE [num_query_heads, head_dim] of positions before the first plan that rings hold, and of plans.
  const float* PastQuery(int row, int layer, uint32_t position) const;
  const Inputs& inputs(int plan) const { return inputs_[plan]; }
  const RopeShape& rope() const { return rope_; }
  float attention_scale() const;
  const std::string& model_dir() const { return directory_.path(); }
  uint32_t first_past(int row) const;

  // What the inference rank holds of a list's pool: [max_rows, num_kv_heads] of a layer.
  std::vector<device::AttentionList> PeerLists(int layer) const;
  std::vector<uint32_t> PeerPoolIndices(int layer) const;  // [max_rows, num_kv_heads, max_budget]
  std::vector<uint16_t> PeerSlots() const;
  // The slot of a pool index.
  size_t Slot(int row, size_t list, uint32_t pool_index) const;

  std::unique_ptr<DeviceKvStore> store;
  std::unique_ptr<DevicePlan> plan;
  std::unique_ptr<DeviceSelection> selection;
  std::unique_ptr<SelectGraph> graph;
  std::unique_ptr<DeviceWeights> weights;
  device::CacheInbox inbox;
  device::InferenceInbox peer;
  device::ExchangeShape exchange;

 private:
  void MakeInputs();
  void OpenSequences();
  void SetRow(int row, uint32_t sequence);
  void LoadModel();

  GpuContext& gpu_;
  const Options options_;
  std::mt19937_64 random_;
  TempDir directory_;
  RopeShape rope_;
  std::vector<std::vector<std::vector<uint16_t>>> rows_;  // [row][list][position][2 * head_dim]
  std::vector<std::vector<std::vector<float>>> past_;     // [row][layer][position - first_past][query floats]
  std::vector<Inputs> inputs_;
  std::vector<uint32_t> pages_;  // [max_rows][num_lists][peer_pages]
  uint32_t pool_base_ = 0;
  size_t num_slots_ = 0;
};

}  // namespace winnow
