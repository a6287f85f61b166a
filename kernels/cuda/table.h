#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/collective/all_reduce_terms.h"
#include "kernels/cuda/collective/chunk_sums.h"
#include "kernels/cuda/collective/nccl_pair.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/probe.h"
#include "kernels/cuda/device/row_moves.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/indexer/indexer.h"
#include "kernels/cuda/latent/latent.h"
#include "kernels/cuda/matmul/matmul.h"
#include "kernels/cuda/prefill/prefill_attention.h"
#include "kernels/cuda/rows/cache.h"
#include "kernels/cuda/select/page_units.h"
#include "kernels/cuda/select/predict.h"
#include "kernels/cuda/select/selection.h"
#include "kernels/cuda/step/attended_mass.h"
#include "kernels/cuda/step/elementwise.h"
#include "kernels/cuda/step/row_digest.h"
#include "kernels/cuda/step/step.h"

namespace winnow::cuda {

// All that the CUDA backend gives: one table of launchers per family, and devices. Lives in the plugin, for ever.
struct CudaTable {
  uint32_t abi = 0;  // kCudaAbi of the plugin
  const AttendedMassKernels* mass = nullptr;
  const AttentionKernels* attention = nullptr;
  const CacheKernels* cache = nullptr;
  const ChunkSumKernels* chunk_sums = nullptr;
  const DigestKernels* digest = nullptr;
  const ElementwiseKernels* elementwise = nullptr;
  const ExpertKernels* experts = nullptr;
  const IndexerKernels* indexer = nullptr;
  const LatentKernels* latent = nullptr;
  const MatmulKernels* matmul = nullptr;
  const PageUnitKernels* page_units = nullptr;
  const PredictKernels* predict = nullptr;
  const PrefillAttentionKernels* prefill = nullptr;
  const ProbeKernels* probe = nullptr;
  const RowKernels* rows = nullptr;
  const SelectionKernels* selection = nullptr;
  const StepKernels* step = nullptr;
  const AllReduceKernels* all_reduce = nullptr;
  int (*device_count)() = nullptr;      // 0 without driver or GPU
  const char* (*why_none)() = nullptr;  // CUDA's words for it
  absl::StatusOr<std::unique_ptr<Device>> (*open_device)(int ordinal) = nullptr;
  // One side asks for an id and hands it to the other; both open with it, as rank 0 and 1, at about the same time. This
  // takes until both are there. UNAVAILABLE says what is missing.
  absl::StatusOr<std::string> (*new_nccl_id)() = nullptr;
  absl::StatusOr<std::unique_ptr<NcclPair>> (*open_nccl_pair)(Device&, std::string_view id, int rank,
                                                              const NcclPairOptions&) = nullptr;
  CudaVersions (*versions)() = nullptr;
  bool (*can_access_peer)(int ordinal, int peer_ordinal) = nullptr;
};
inline constexpr uint32_t kCudaAbi = 1;  // grows with every change of these headers that a release has seen

}  // namespace winnow::cuda
