#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/huge_page_region.h"
#include "model/weights/weight_packer.h"

namespace winnow {

// Hands out consecutive parts of the region as matrices and remembers how to fill them. Packed sizes are multiples of
// 64 bytes, so every matrix is aligned for the kernels.
class MatrixPlan {
 public:
  MatrixPlan(const HugePageRegion& region, Dtype dtype)
      : next_(region.data()), end_(region.data() + region.bytes()), dtype_(dtype) {}

  PackedMatrix Add(std::vector<std::string> tensors, int out_features, int in_features, bool release_pages = true) {
    return AddAs(dtype_, std::move(tensors), out_features, in_features, release_pages);
  }
  // The same in another dtype than the plan's.
  PackedMatrix AddAs(Dtype dtype, std::vector<std::string> tensors, int out_features, int in_features,
                     bool release_pages = true) {
    const size_t bytes = PackedBytes(out_features, in_features, dtype);
    WINNOW_CHECK(bytes <= static_cast<size_t>(end_ - next_));
    const PackedMatrix matrix{.data = next_, .out_features = out_features, .in_features = in_features, .dtype = dtype};
    jobs_.push_back(
        {.tensors = std::move(tensors), .matrix = matrix, .destination = next_, .release_pages = release_pages});
    next_ += bytes;
    return matrix;
  }

  // One expert's part of a tensor.
  PackedMatrix AddSlice(const std::string& tensor, const ExpertSlice& slice, int out_features, int in_features) {
    const PackedMatrix matrix = Add({tensor}, out_features, in_features);
    jobs_.back().slice = slice;
    return matrix;
  }

  bool full() const { return next_ == end_; }
  std::span<const PackJob> jobs() const { return jobs_; }

 private:
  uint8_t* next_;
  uint8_t* end_;
  Dtype dtype_;
  std::vector<PackJob> jobs_;
};

}  // namespace winnow
