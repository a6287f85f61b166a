#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache_rank/select/host/select_head.h"
#include "cache_rank/select/predictor/query_projection.h"
#include "cache_rank/store/kv_block_pool.h"
#include "cache_rank/store/sequence_kv.h"
#include "tools/bench/gpu/checks/cache_gpu.h"
#include "tools/bench/gpu/checks/selection_reference.h"

namespace winnow {

// The CPU backend with the same sequences as a CacheGpu: its queries, its selections, and how far a selection may be
// from them. Keys are those that the GPU scores: the stored ones, or their fp8 copies, as f32.
class CacheGpuReference {
 public:
  CacheGpuReference(const CacheGpu& gpu, const KernelTable& kernels);

  // By the CPU backend: the queries [num_query_heads, head_dim], rotated, that `row` selects with in this layer.
  std::vector<float> Queries(int plan, const SelectAction& queries, int row);
  // By how much an element of the GPU's may differ from those.
  double QueryTolerance(int plan, const SelectAction& queries, int row);

  // Sel of a list by SelectHead, for given queries [group, head_dim].
  std::vector<uint32_t> Select(int plan, int row, size_t list, const float* queries);

  // What is wrong with `selected` for those queries by the definition (selection_reference.h); empty when nothing is.
  // Bounds of pages are those of the keys that `selector` has stored: the CPU backend knows them as they are scored.
  enum class Selector : uint8_t { kGpu, kCpu };
  std::string CheckSelection(int plan, int row, size_t list, const float* queries,
                             const std::vector<uint32_t>& selected, Selector selector = Selector::kGpu);

  // Captured mass of a list's sinks, `selected` and recent window, in f64, and by how much a sum in f32 may differ. NaN
  // where it is not measured.
  struct Mass {
    double mass, tolerance;
  };
  Mass MassOf(int plan, int row, size_t list, const std::vector<uint32_t>& selected);

  // The plan's rows are appended, its queries kept.
  void EndPlan(int plan);

 private:
  struct Sequence {
    std::unique_ptr<SequenceKv> kv;
    std::vector<QueryRing> rings;  // [num_layers]
  };
  void LoadQueryWeights();
  void Append(int row, uint32_t first, uint32_t count);
  void PushQuery(int row, int layer, uint32_t position, const float* query);
  std::vector<float> KeyOf(int row, size_t list, uint32_t position) const;  // as it is scored
  const KvLayout& layout() const { return gpu_.layout(); }

  const CacheGpu& gpu_;
  const KernelTable& kernels_;
  SelectionSpec spec_;  // without key copy: keys are what it would hold
  SelectionModel model_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<const QueryProjection> projection_;
  std::unique_ptr<KvBlockPool> pool_;
  std::vector<Sequence> sequences_;  // [max_rows]
  SelectScratch scratch_;
  // Of the query projections, where the predictor is depth.
  std::vector<std::vector<float>> query_weights_;  // [num_layers] of [query features, hidden_size]
  std::vector<std::vector<float>> input_norms_;    // [num_layers] of [hidden_size]
};

}  // namespace winnow
