#include "model/weights/weight_packer.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "common/base/status.h"
#include "common/model/tensor_elements.h"
#include "kernels/quantized_pack.h"
#include "model/weights/mxfp4_slice.h"

namespace winnow {
namespace {

// The rows of several weights as one matrix.
class StackedRows {
 public:
  explicit StackedRows(const PackJob& job) : weights_(job.weights), matrix_(job.matrix) {}

  // Packs rows [first, first + count) of the stack, at most one panel, into `packed`. Rows of one plain weight are
  // packed where they lie; a panel across weights (of perhaps different dtypes), an unaligned or a dequantised one goes
  // through f32, which holds every plain value.
  void PackPanel(const KernelTable& kernels, int first, int count, void* packed) {
    PackParams params{.dtype = Dtype::kF32,
                      .out_features = count,
                      .in_features = matrix_.in_features,
                      .packed_dtype = matrix_.dtype,
                      .packed = packed};
    panel_.clear();
    bool in_place = false;
    ForEachPart(first, count, [&](const StoredWeight& weight, uint64_t from, uint64_t rows) {
      if (weight.is_plain() && rows == static_cast<uint64_t>(count)) {
        const uint8_t* data = weight.plain().bytes.data() + from * weight.inputs() * DtypeBytes(weight.dtype());
        if (IsAligned(data, weight.dtype())) {
          params.weight = data;
          params.dtype = weight.dtype();
          in_place = true;
          return;
        }
      }
      for (uint64_t r = from; r < from + rows; ++r) weight.AppendAsF32(r, 0, weight.inputs(), panel_);
    });
    if (!in_place) params.weight = panel_.data();
    kernels.pack(params);
  }

  // The same for quantised weights, as they are.
  void PackQuantizedPanel(int first, int count, void* packed) {
    const size_t in = weights_.front().inputs();
    const size_t groups = weights_.front().num_groups();
    codes_.resize(kPanel * in);
    scales_.resize(kPanel * groups);
    zeros_.resize(kPanel * groups);
    size_t done = 0;
    ForEachPart(first, count, [&](const StoredWeight& weight, uint64_t from, uint64_t rows) {
      weight.Codes(from, rows, codes_.data() + done * in);
      weight.Scales(from, rows, scales_.data() + done * groups, zeros_.data() + done * groups);
      done += rows;
    });
    winnow::PackQuantizedPanel({.codes = codes_.data(),
                                .scales = scales_.data(),
                                .zeros = zeros_.data(),
                                .num_outputs = count,
                                .matrix = matrix_,
                                .packed = packed});
  }

 private:
  // Calls use(weight, its first row, rows) for the parts of rows [first, first + count) in order.
  template <typename Use>
  void ForEachPart(int first, int count, const Use& use) const {
    int begin = 0;  // of the current weight in the stack
    for (const StoredWeight& weight : weights_) {
      const int rows = static_cast<int>(weight.outputs());
      const int from = std::max(first, begin);
      const int to = std::min(first + count, begin + rows);
      if (from < to) use(weight, static_cast<uint64_t>(from - begin), static_cast<uint64_t>(to - from));
      begin += rows;
    }
  }

  const std::vector<StoredWeight>& weights_;
  const PackedMatrix& matrix_;
  std::vector<float> panel_;
  std::vector<uint8_t> codes_;
  std::vector<float> scales_;
  std::vector<int16_t> zeros_;
};

absl::Status PackOne(const Checkpoint& checkpoint, const KernelTable& kernels, const PackJob& job) {
  if (job.slice.has_value() && job.matrix.mxfp4) {
    return PackMxfp4Slice(checkpoint, *job.slice, job.matrix, job.destination);
  }
  if (job.slice.has_value()) return PackExpertSlice(checkpoint, kernels, *job.slice, job.matrix, job.destination);
  if (job.latent.has_value()) {
    return PackLatentSlice(job.weights.front(), kernels, *job.latent, job.matrix, job.destination);
  }
  for (const StoredWeight& weight : job.weights) WINNOW_RETURN_IF_ERROR(weight.CheckFinite());
  const PackedMatrix& matrix = job.matrix;
  StackedRows rows(job);
  const size_t panel_bytes = PanelBytes(matrix);
  auto* packed = static_cast<uint8_t*>(job.destination);
  for (int first = 0; first < matrix.out_features; first += kPanel, packed += panel_bytes) {
    const int count = std::min(kPanel, matrix.out_features - first);
    if (IsQuantized(matrix.dtype)) {
      rows.PackQuantizedPanel(first, count, packed);
    } else {
      rows.PackPanel(kernels, first, count, packed);
    }
  }
  if (job.release_pages) {
    for (const StoredWeight& weight : job.weights) {
      for (const std::string& name : weight.tensors()) checkpoint.ReleasePages(name);
    }
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
