#include "kernels/cuda/collective/open_nccl_pair.h"
#include "kernels/cuda/device/open_device.h"
#include "kernels/plugin/device_table.h"

namespace winnow::device {

extern "C" __attribute__((visibility("default"))) const DeviceTable* winnow_cuda_table() {
  static const DeviceTable table = {.abi = kDeviceAbi,
                                    .mass = &kAttendedMassKernels,
                                    .attention = &kAttentionKernels,
                                    .cache = &kCacheKernels,
                                    .chunk_sums = &kChunkSumKernels,
                                    .digest = &kDigestKernels,
                                    .elementwise = &kElementwiseKernels,
                                    .experts = &kExpertKernels,
                                    .indexer = &kIndexerKernels,
                                    .latent = &kLatentKernels,
                                    .matmul = &kMatmulKernels,
                                    .page_units = &kPageUnitKernels,
                                    .predict = &kPredictKernels,
                                    .prefill = &kPrefillAttentionKernels,
                                    .probe = &kProbeKernels,
                                    .rows = &kRowKernels,
                                    .selection = &kSelectionKernels,
                                    .step = &kStepKernels,
                                    .all_reduce = &kAllReduceKernels,
                                    .device_count = DeviceCount,
                                    .why_none = WhyNoDevice,
                                    .open_device = OpenDevice,
                                    .new_nccl_id = NewNcclId,
                                    .open_nccl_pair = OpenNcclPair,
                                    .versions = Versions,
                                    .can_access_peer = CanAccessPeer};
  return &table;
}

}  // namespace winnow::device
