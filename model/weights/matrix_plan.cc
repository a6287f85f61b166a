#include "model/weights/matrix_plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/model/quantized/mxfp4.h"

namespace winnow {
namespace {

size_t OrderBytes(int in_features) {
  return (static_cast<size_t>(in_features) * sizeof(uint32_t) + 63) / 64 * 64;
}

bool HaveOneForm(std::span<const StoredWeight> weights) {
  const StoredWeight& first = weights.front();
  return !first.is_plain() && std::all_of(weights.begin() + 1, weights.end(), [&](const StoredWeight& weight) {
    return !weight.is_plain() && weight.dtype() == first.dtype() && weight.group_size() == first.group_size() &&
           weight.input_order() == first.input_order();
  });
}

}  // namespace

size_t PlannedBytes(const PackedMatrix& matrix) {
  return PackedBytes(matrix) + (matrix.input_order == nullptr ? 0 : OrderBytes(matrix.in_features));
}

std::vector<StoredWeight> MatrixPlan::Open(const std::vector<MatrixRows>& rows, int in_features) {
  std::vector<StoredWeight> weights;
  for (const MatrixRows& part : rows) {
    absl::StatusOr<StoredWeight> weight =
        StoredWeight::Open(*source_.checkpoint, source_.quantization, part.tensor, static_cast<uint64_t>(part.outputs),
                           static_cast<uint64_t>(in_features));
    if (!weight.ok()) {
      status_.Update(weight.status());
      return {};
    }
    weights.push_back(*std::move(weight));
  }
  return weights;
}

uint8_t* MatrixPlan::Take(size_t bytes) {
  uint8_t* const place = region_ == nullptr ? nullptr : region_ + bytes_;
  bytes_ += bytes;
  return place;
}

PackedMatrix MatrixPlan::Add(std::vector<MatrixRows> rows, int in_features, bool release_pages,
                             const std::vector<MatrixRows>& beside, std::optional<Dtype> dtype) {
  PackedMatrix matrix{.in_features = in_features, .dtype = dtype.value_or(source_.compute_dtype)};
  for (const MatrixRows& part : rows) {
    WINNOW_CHECK(part.taken == 0 || &part == &rows.back());
    matrix.out_features += part.taken == 0 ? part.outputs : part.taken;
  }
  std::vector<MatrixRows> all = rows;
  all.insert(all.end(), beside.begin(), beside.end());
  std::vector<StoredWeight> weights;
  if (source_.checkpoint != nullptr) weights = Open(all, in_features);
  if (weights.empty()) {
    Take(PackedBytes(matrix));
    return matrix;
  }

  const bool quantized = !dtype.has_value() && HaveOneForm(weights);
  const std::vector<uint32_t>& order = weights.front().input_order();
  if (quantized) {
    matrix.dtype = weights.front().dtype();
    matrix.group_size = weights.front().group_size();
  }
  uint8_t* const destination = Take(PackedBytes(matrix));
  matrix.data = destination;
  if (quantized && !order.empty()) {
    uint8_t* const place = Take(OrderBytes(in_features));
    matrix.input_order = order.data();  // stays with the job, for as long as the plan lasts
    if (place != nullptr) {
      std::memcpy(place, order.data(), order.size() * sizeof(uint32_t));
      matrix.input_order = reinterpret_cast<const uint32_t*>(place);
    }
  }
  weights.erase(weights.begin() + static_cast<std::ptrdiff_t>(rows.size()), weights.end());
  jobs_.push_back(
      {.weights = std::move(weights), .matrix = matrix, .destination = destination, .release_pages = release_pages});
  return matrix;
}

PackedMatrix MatrixPlan::AddSlice(const ExpertSlice& slice, int out_features, int in_features) {
  PackedMatrix matrix{.out_features = out_features, .in_features = in_features, .dtype = source_.compute_dtype};
  if (source_.checkpoint != nullptr && source_.quantization.format == WeightQuantization::Format::kMxfp4) {
    matrix.dtype = Dtype::kI4;
    matrix.group_size = static_cast<int>(kMxfp4Block);
    matrix.mxfp4 = true;
  }
  uint8_t* const destination = Take(PackedBytes(matrix));
  matrix.data = destination;
  jobs_.push_back({.weights = {}, .matrix = matrix, .destination = destination, .slice = slice});
  return matrix;
}

PackedMatrix MatrixPlan::AddSlice(const LatentSlice& slice, int out_features, int in_features) {
  PackedMatrix matrix{.out_features = out_features, .in_features = in_features, .dtype = source_.compute_dtype};
  uint8_t* const destination = Take(PackedBytes(matrix));
  matrix.data = destination;
  if (source_.checkpoint == nullptr) return matrix;
  PackJob job{.weights = {}, .matrix = matrix, .destination = destination, .release_pages = false};
  job.latent = slice;
  job.weights = Open({{slice.tensor, slice.num_heads * (slice.nope_dim + slice.value_dim)}}, slice.shape.rank);
  if (!job.weights.empty()) jobs_.push_back(std::move(job));
  return matrix;
}

}  // namespace winnow
