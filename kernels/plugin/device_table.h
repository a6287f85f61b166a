#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"
#include "kernels/device/nccl_pair.h"
#include "kernels/device/params/all_reduce_terms.h"
#include "kernels/device/params/attended_mass.h"
#include "kernels/device/params/attention.h"
#include "kernels/device/params/cache.h"
#include "kernels/device/params/chunk_sums.h"
#include "kernels/device/params/elementwise.h"
#include "kernels/device/params/experts.h"
#include "kernels/device/params/indexer.h"
#include "kernels/device/params/latent.h"
#include "kernels/device/params/matmul.h"
#include "kernels/device/params/page_units.h"
#include "kernels/device/params/predict.h"
#include "kernels/device/params/prefill_attention.h"
#include "kernels/device/params/probe.h"
#include "kernels/device/params/row_digest.h"
#include "kernels/device/params/row_moves.h"
#include "kernels/device/params/selection.h"
#include "kernels/device/params/step.h"

namespace winnow::device {

// All that a vendor's plugin gives: one table of launchers per family, and devices. Lives in the plugin, for ever.
struct DeviceTable {
  uint32_t abi = 0;  // kDeviceAbi of the plugin
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
  const char* (*why_none)() = nullptr;  // the driver's words for it
  absl::StatusOr<std::unique_ptr<Device>> (*open_device)(int ordinal) = nullptr;
  // One side asks for an id and hands it to the other; both open with it, as rank 0 and 1, at about the same time. This
  // takes until both are there. UNAVAILABLE says what is missing.
  absl::StatusOr<std::string> (*new_nccl_id)() = nullptr;
  absl::StatusOr<std::unique_ptr<NcclPair>> (*open_nccl_pair)(Device&, std::string_view id, int rank,
                                                              const NcclPairOptions&) = nullptr;
  DriverVersions (*versions)() = nullptr;
  bool (*can_access_peer)(int ordinal, int peer_ordinal) = nullptr;
};
inline constexpr uint32_t kDeviceAbi = 1;  // grows with every change of these headers that a release has seen

}  // namespace winnow::device
