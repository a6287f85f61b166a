#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/model/checkpoint.h"
#include "common/model/quantized/weight_quantization.h"
#include "model/weights/weight_packer.h"

namespace winnow {

// Where weights come from, and what plain ones are packed as.
struct MatrixSource {
  const Checkpoint* checkpoint = nullptr;  // null: matrices have the size of plain ones
  const WeightQuantization& quantization;
  Dtype compute_dtype = Dtype::kBf16;  // kBf16 or kF32
};

// Some rows of a matrix: a weight of the checkpoint, by the name of its plain tensor.
struct MatrixRows {
  std::string tensor;
  int outputs = 0;  // that the checkpoint stores
  int taken = 0;    // of them, the first; 0: all. Of the last weight of a matrix alone.
};

// Hands out consecutive parts of a region as matrices and remembers how to fill them. Packed sizes are multiples of
// 64 bytes, so every matrix is aligned for the kernels.
//
// A matrix of quantised weights stays quantised if all of them have the same codes, groups and input order. Otherwise
// its weights are dequantised to the compute dtype.
class MatrixPlan {
 public:
  // `region`: 64-byte aligned, and as large as a plan without one says; null: sizes are counted.
  MatrixPlan(const MatrixSource& source, uint8_t* region) : source_(source), region_(region) {}

  // `beside`: weights that another process stacks with these, so that both must keep them in the same form.
  PackedMatrix Add(std::vector<MatrixRows> rows, int in_features, bool release_pages = true,
                   const std::vector<MatrixRows>& beside = {}) {
    return Add(std::move(rows), in_features, release_pages, beside, std::nullopt);
  }
  // The same in a plain dtype of its own: quantised weights are dequantised to it.
  PackedMatrix AddAs(Dtype dtype, std::vector<MatrixRows> rows, int in_features) {
    return Add(std::move(rows), in_features, /*release_pages=*/true, /*beside=*/{}, dtype);
  }
  // One expert's part of a tensor, which is plain or MXFP4.
  PackedMatrix AddSlice(const ExpertSlice& slice, int out_features, int in_features);
  // One head's part of a projection from latents, dequantised where it is quantised.
  PackedMatrix AddSlice(const LatentSlice& slice, int out_features, int in_features);

  size_t bytes() const { return bytes_; }
  std::span<const PackJob> jobs() const { return jobs_; }
  const absl::Status& status() const { return status_; }  // the first error, of tensors that are not as expected

 private:
  // `dtype`: of the matrix, whatever its weights are stored as.
  PackedMatrix Add(std::vector<MatrixRows> rows, int in_features, bool release_pages,
                   const std::vector<MatrixRows>& beside, std::optional<Dtype> dtype);
  std::vector<StoredWeight> Open(const std::vector<MatrixRows>& rows, int in_features);
  uint8_t* Take(size_t bytes);

  const MatrixSource source_;
  uint8_t* const region_;
  size_t bytes_ = 0;
  std::vector<PackJob> jobs_;
  absl::Status status_;
};

// What a plan takes for a matrix, with its input order.
size_t PlannedBytes(const PackedMatrix& matrix);

}  // namespace winnow
