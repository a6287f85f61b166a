#pragma once
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache_rank/store/device/device_kv_shape.h"
#include "common/model/model_config.h"
#include "common/selection/selection_spec.h"
#include "model/device/decode_graph.h"

namespace winnow {

// What a step attends to, and where that lies.
enum class KvPlacement : uint8_t {
  kDense,          // everything
  kFixed,          // a selection that never changes and costs nothing
  kColocated,      // everything lies in the GPU's HBM, and attention reads there what the same GPU selects
  kColocatedDram,  // rows lie in the host's DRAM; the GPU selects, and keeps a buffer of what it selected lately
  kDisaggregated,  // another GPU stores and selects, and sends rows
};
const char* PlacementName(KvPlacement placement);
absl::StatusOr<KvPlacement> ParsePlacement(std::string_view name);
DecodeMode ModeOf(KvPlacement placement);

constexpr bool Selects(KvPlacement placement) {
  return placement != KvPlacement::kDense && placement != KvPlacement::kFixed;
}

// One measurement of decode steps.
struct DecodeCase {
  std::string preset;  // empty: the command line's own specification
  KvPlacement placement = KvPlacement::kFixed;
  SelectionSpec spec;
  int batch = 0;
  Dtype kv = Dtype::kBf16;  // of the rows that attention reads
  int dram_sequences = 0;   // kDisaggregated: of the batch, whose rows lie in the DRAM beside the cache rank's GPU

  RowTier rows() const;
  // Of one rank of a tensor-parallel group, of a model like `shard`, for sequences of at most max_tokens.
  DecodeSlotShape SlotShape(const ModelConfig& shard, uint32_t max_tokens) const;
};

// A preset as a GPU is to run it with that placement: `budget` rows, scores from 8-bit keys where rows are out of
// reach. Half of the heads of lserve stream, those with an odd number, as no head profile of random weights would say
// which. FAILED_PRECONDITION for what is not built.
absl::StatusOr<DecodeCase> CaseOf(const std::string& preset, KvPlacement placement, uint32_t budget,
                                  const ModelConfig& shard, Dtype kv = Dtype::kBf16);

}  // namespace winnow
