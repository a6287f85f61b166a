#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/huge_page_region.h"
#include "common/base/status.h"
#include "common/model/model_config.h"
#include "kernels/kernel_table.h"

namespace winnow {

// The part of a model that turns a residual into queries: of each layer the input norm, Wq, and q bias and q norm where
// the model has them. Nothing else of the checkpoint is read. With it a cache rank computes depth predictions itself,
//   q̂(l) = qnorm(Wq_l norm_l(x)),  x the residual that enters an earlier layer at the same position,
// from the kernels that the inference rank would use: with the same kernel set and compute dtype the bits are the same.
// Immutable after Load.
class QueryProjection {
 public:
  static constexpr int kMaxRows = 64;  // of one Project: what a decode matmul takes

  // INVALID_ARGUMENT names file and tensor. `compute_dtype`: kBf16 or kF32, as the inference ranks compute.
  static absl::StatusOr<std::unique_ptr<const QueryProjection>> Load(const std::string& model_dir,
                                                                     const KernelTable& kernels, Dtype compute_dtype,
                                                                     int num_threads);
  // Memory that Load takes for this model. Its files are opened; tensors that are not as expected are left to Load.
  static absl::StatusOr<size_t> BytesNeeded(const std::string& model_dir, Dtype compute_dtype);

  // Of residuals [num_rows, hidden_size] to queries [num_rows, num_query_heads, head_dim] of `layer`, before RoPE;
  // num_rows <= kMaxRows. Reads bytes() / num_layers of weights once, on all threads of the executor. A row's bits
  // depend on that row alone.
  void Project(Executor& executor, int layer, const float* hidden, int num_rows, float* queries) const;

  // FAILED_PRECONDITION names what differs between this model and the one whose KV is served.
  absl::Status CheckShape(int num_layers, int num_query_heads, int head_dim) const;

  int hidden_size() const { return config_.hidden_size; }
  int query_features() const { return config_.q_features(); }
  const std::string& model_digest() const { return model_digest_; }
  size_t bytes() const { return matrices_.bytes() + vectors_.size() * sizeof(float); }

 private:
  // Absent vectors are empty: their data() is null, as the kernels expect.
  struct Layer {
    std::span<const float> input_norm;  // [hidden_size]
    PackedMatrix query;                 // hidden_size -> q heads
    std::span<const float> query_bias;  // [q_features]
    std::span<const float> q_norm;      // [head_dim], or of all heads
  };

  QueryProjection(const ModelConfig& config, const KernelTable& kernels) : config_(config), kernels_(kernels) {}

  const ModelConfig config_;
  const KernelTable& kernels_;
  std::string model_digest_;
  HugePageRegion matrices_;
  std::vector<float> vectors_;  // never resized once views exist
  std::vector<Layer> layers_;
};

}  // namespace winnow
