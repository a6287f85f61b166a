#pragma once
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/layer_names.h"
#include "common/model/quantized/stored_weight.h"
#include "model/weights/device_weights.h"
#include "model/weights/expert_rows.h"

namespace winnow {

// Brings a validated checkpoint into carved device memory: copied through pinned memory and packed on the device, as
// codes where a matrix is held as stored, else converted to bf16 on the host. Of sharded matrices only the shard's part
// is read.
class CheckpointUpload {
 public:
  CheckpointUpload(const device::DeviceTable& table, device::Device& device, const Checkpoint& checkpoint,
                   const WeightQuantization& quantization)
      : table_(table),
        device_(device),
        checkpoint_(checkpoint),
        quantization_(quantization),
        stream_(device.NewStream()) {}
  absl::Status Fill(DeviceWeights& weights);

 private:
  static constexpr size_t kPinnedBytes = size_t{64} << 20;

  absl::Status FillVectors(DeviceWeights& weights);
  // Of the layer's tensors: the router to `router` in host memory, the experts to the device.
  absl::Status FillRouter(const ModelConfig& config, int layer, const device::ExpertMatrices& experts, float* router);
  absl::Status FillExperts(const ModelConfig& config, int layer, const device::ExpertMatrices& experts);
  // Where a vector of the device has its place in host memory.
  using VectorPlace = std::function<float*(const float* on_device)>;
  // Of latent attention: the projections of queries' latents, and by head of keys and of values.
  absl::Status FillLatents(const ModelConfig& config, int layer, const DeviceLatentWeights& latent);
  absl::Status FillExpertBiases(const LayerNames& names, const device::ExpertMatrices& experts,
                                const VectorPlace& place);
  absl::Status AppendVector(const std::string& name, size_t first, size_t count, float* out);
  absl::Status FillMatrix(const std::vector<WeightPiece>& pieces, const DeviceForm& form,
                          const device::DeviceMatrix& matrix);
  // Rows of the pieces, one after the other, as bf16.
  absl::Status Upload(const std::vector<WeightPiece>& pieces, void* to);
  // Experts that lie in one tensor, each to its place among those of the device.
  absl::Status FillFusedExperts(const LayerNames& names, const device::ExpertMatrices& experts);
  absl::Status UploadExpertRows(const ExpertRowSource& source, const void* matrices);
  absl::Status UploadExpertCodes(const ExpertRowSource& source, const void* matrices, const uint8_t* scales);
  // Pieces as codes, and the scales and zeros of the matrix's groups.
  absl::Status UploadCodes(const std::vector<WeightPiece>& pieces, const device::DeviceMatrix& matrix,
                           const device::MatrixCodes& to);
  absl::StatusOr<StoredWeight> Open(const WeightPiece& piece) const;

  const device::DeviceTable& table_;
  device::Device& device_;
  const Checkpoint& checkpoint_;
  const WeightQuantization& quantization_;
  const device::Stream stream_;
  std::unique_ptr<device::DeviceMemory> staging_;
  std::unique_ptr<device::DeviceMemory> pinned_;
};

}  // namespace winnow
