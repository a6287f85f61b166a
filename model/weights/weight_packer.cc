#include "model/weights/weight_packer.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/model/model_tensors.h"
#include "common/model/tensor_elements.h"

namespace winnow {
namespace {

// The rows of several tensors as one matrix.
class StackedRows {
 public:
  StackedRows(std::span<const TensorView> tensors, int in_features) : tensors_(tensors), in_features_(in_features) {}

  // Packs rows [first, first + count) of the stack, at most one panel, into `packed`. Rows of one tensor are packed
  // where they lie; a panel across tensors (of perhaps different dtypes), or an unaligned one, goes through f32, which
  // holds every stored value.
  void PackPanel(const KernelTable& kernels, int first, int count, Dtype packed_dtype, void* packed) {
    PackParams params{.dtype = Dtype::kF32,
                      .out_features = count,
                      .in_features = in_features_,
                      .packed_dtype = packed_dtype,
                      .packed = packed};
    const auto in = static_cast<size_t>(in_features_);
    panel_.clear();
    int begin = 0;  // of the current tensor in the stack
    for (const TensorView& tensor : tensors_) {
      const int rows = static_cast<int>(tensor.shape[0]);
      const int from = std::max(first, begin);
      const int to = std::min(first + count, begin + rows);
      if (from < to) {
        const Dtype dtype = *WeightDtype(tensor.dtype);
        const size_t offset = static_cast<size_t>(from - begin) * in;
        const uint8_t* data = tensor.bytes.data() + offset * DtypeBytes(dtype);
        if (to - from == count && IsAligned(data, dtype)) {
          params.weight = data;
          params.dtype = dtype;
          kernels.pack(params);
          return;
        }
        AppendAsF32(tensor, offset, static_cast<size_t>(to - from) * in, panel_);
      }
      begin += rows;
    }
    WINNOW_CHECK(panel_.size() == static_cast<size_t>(count) * in);
    params.weight = panel_.data();
    kernels.pack(params);
  }

 private:
  std::span<const TensorView> tensors_;
  int in_features_;
  std::vector<float> panel_;
};

absl::Status PackOne(const Checkpoint& checkpoint, const KernelTable& kernels, const PackJob& job) {
  if (job.slice.has_value()) {
    return PackExpertSlice(checkpoint, kernels, job.tensors.front(), *job.slice, job.matrix, job.destination);
  }
  std::vector<TensorView> tensors;
  for (const std::string& name : job.tensors) {
    WINNOW_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint.Find(name));
    WINNOW_RETURN_IF_ERROR(CheckFinite(tensor, checkpoint.FileOf(name)));
    tensors.push_back(tensor);
  }
  const PackedMatrix& matrix = job.matrix;
  StackedRows rows(tensors, matrix.in_features);
  const size_t panel_bytes = PackedBytes(kPanel, matrix.in_features, matrix.dtype);
  auto* packed = static_cast<uint8_t*>(job.destination);
  for (int first = 0; first < matrix.out_features; first += kPanel, packed += panel_bytes) {
    rows.PackPanel(kernels, first, std::min(kPanel, matrix.out_features - first), matrix.dtype, packed);
  }
  if (job.release_pages) {
    for (const std::string& name : job.tensors) checkpoint.ReleasePages(name);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PackAll(const Checkpoint& checkpoint, const KernelTable& kernels, std::span<const PackJob> jobs,
                     int num_threads) {
  std::vector<absl::Status> results(jobs.size());
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  const auto work = [&] {
    // Jobs are taken in order and finished once taken, so every job before the first failing one has a result.
    for (size_t i = next++; i < jobs.size() && !failed; i = next++) {
      results[i] = PackOne(checkpoint, kernels, jobs[i]);
      if (!results[i].ok()) failed = true;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 1; i < num_threads; ++i) threads.emplace_back(work);
    work();
  }
  for (const absl::Status& result : results) WINNOW_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

}  // namespace winnow
