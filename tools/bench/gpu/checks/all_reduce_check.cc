#include "tools/bench/gpu/checks/all_reduce_check.h"

#include "absl/strings/str_cat.h"
#include "kernels/cpu/scalar.h"

namespace winnow {
namespace {

struct SumCase {
  int num_ranks, hidden_size, in_features, num_rows;
};

std::vector<float> Normal(GpuContext& gpu, size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(gpu.random);
  return values;
}

// Row 1 of a matrix is zeros: its sums are +0, which a place cannot tell from what has not come.
uint16_t* UploadBf16(GpuContext& gpu, int rows, int columns, bool with_zeros) {
  const std::vector<float> values = Normal(gpu, static_cast<size_t>(rows) * columns);
  std::vector<uint16_t> bf16(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    bf16[i] = with_zeros && i / columns == 1 ? 0 : F32ToBf16(values[i]);
  }
  return gpu.Upload(bf16);
}

template <typename T>
double BytesThatDiffer(const std::vector<T>& a, const std::vector<T>& b) {
  double differ = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) differ += std::memcmp(&a[i], &b[i], sizeof(T)) != 0;
  return differ;
}

class SumCheck {
 public:
  SumCheck(GpuContext& gpu, const SumCase& of)
      : gpu_(gpu),
        of_(of),
        name_(absl::StrCat("all-reduce of ", of.num_ranks, " ranks, ", of.num_rows, " x ", of.hidden_size)),
        elements_(static_cast<size_t>(of.num_rows) * of.hidden_size),
        stride_(static_cast<int64_t>(elements_) + 8),
        weight_(gpu.Upload(Normal(gpu, of.hidden_size))),
        scratch_(gpu.NewZeroed<uint8_t>(gpu.table.matmul->decode_scratch_bytes(64, of.hidden_size))) {
    for (int r = 0; r < of.num_ranks; ++r) {
      rows_.push_back(UploadBf16(gpu, of.num_rows, of.in_features, false));
      matrices_.push_back(UploadBf16(gpu, of.hidden_size, of.in_features, true));
      boxes_.push_back(gpu.NewZeroed<float>(of.num_ranks * stride_));
    }
  }

  void Run() {
    for (int replay = 0; replay < 3; ++replay) {
      const std::vector<float> before = Normal(gpu_, elements_);
      const std::vector<float> sums = Expected(before);
      const std::vector<uint16_t> normed = Norm(gpu_.Upload(sums));
      for (int r = 0; r < of_.num_ranks; ++r) Product(r, Places(r), nullptr);
      for (int r = 0; r < of_.num_ranks; ++r) {
        const bool norms = (replay + r) % 2 == 0;
        float* x = gpu_.Upload(before);
        uint16_t* out = gpu_.New<uint16_t>(elements_);
        Add(r, x, norms ? out : nullptr);
        gpu_.report.Check(name_, BytesThatDiffer(gpu_.Download(x, elements_), sums), 0);
        if (norms) gpu_.report.Check(name_ + ", norm", BytesThatDiffer(gpu_.Download(out, elements_), normed), 0);
        const std::vector<float> left = gpu_.Download(boxes_[r], of_.num_ranks * stride_);
        gpu_.report.Check(name_ + ", words left behind", BytesThatDiffer(left, std::vector<float>(left.size())), 0);
      }
    }
    CheckInOneGraph();
  }

 private:
  device::TermPlaces Places(int rank) const {
    device::TermPlaces places{.num_ranks = of_.num_ranks};
    for (int r = 0; r < of_.num_ranks; ++r) places.of_rank[r] = boxes_[r] + rank * stride_;
    return places;
  }
  void Product(int rank, const device::TermPlaces& places, float* y) {
    gpu_.table.matmul->decode_matmul(
        gpu_.stream,
        {.x = rows_[rank],
         .x_stride = of_.in_features,
         .num_rows = of_.num_rows,
         .weight = {.data = matrices_[rank], .out_features = of_.hidden_size, .in_features = of_.in_features},
         .y = y,
         .y_stride = of_.hidden_size,
         .term = places,
         .scratch = scratch_});
  }
  void Add(int rank, float* x, uint16_t* out) {
    gpu_.table.all_reduce->add_terms(gpu_.stream, {.num_ranks = of_.num_ranks,
                                                   .terms = boxes_[rank],
                                                   .term_stride = stride_,
                                                   .x = x,
                                                   .num_rows = of_.num_rows,
                                                   .hidden_size = of_.hidden_size,
                                                   .weight = out != nullptr ? weight_ : nullptr,
                                                   .epsilon = 1e-6f,
                                                   .out = out});
  }
  std::vector<float> Expected(const std::vector<float>& before) {
    std::vector<float> sums(elements_);
    for (int r = 0; r < of_.num_ranks; ++r) {
      float* y = gpu_.New<float>(elements_);
      Product(r, {}, y);
      const std::vector<float> term = gpu_.Download(y, elements_);
      for (size_t i = 0; i < elements_; ++i) sums[i] += term[i];
    }
    for (size_t i = 0; i < elements_; ++i) sums[i] += before[i];
    return sums;
  }
  std::vector<uint16_t> Norm(const float* x) {
    uint16_t* out = gpu_.New<uint16_t>(elements_);
    gpu_.table.elementwise->rms_norm(gpu_.stream, {.x = x,
                                                   .num_rows = of_.num_rows,
                                                   .hidden_size = of_.hidden_size,
                                                   .weight = weight_,
                                                   .epsilon = 1e-6f,
                                                   .out = out});
    return gpu_.Download(out, elements_);
  }

  // Launches that come early, as in a step: what rank 0 gets when its own product is the last before the sum, ten
  // times.
  void CheckInOneGraph() {
    std::vector<float> sums = Normal(gpu_, elements_);
    float* x = gpu_.Upload(sums);
    uint16_t* out = gpu_.New<uint16_t>(elements_);
    for (int i = 0; i < 10; ++i) sums = Expected(sums);
    device::TermPlaces only_first{.num_ranks = 1};
    auto graph = gpu_.device.Capture(gpu_.stream, [&](device::Stream) {
      for (int i = 0; i < 10; ++i) {
        for (int r = of_.num_ranks - 1; r >= 0; --r) {
          only_first.of_rank[0] = boxes_[0] + r * stride_;
          Product(r, only_first, nullptr);
        }
        Add(0, x, out);
      }
    });
    if (!graph.ok()) return gpu_.report.Fail(name_, std::string(graph.status().message()));
    (*graph)->Launch(gpu_.stream);
    gpu_.report.Check(name_ + ", in one graph", BytesThatDiffer(gpu_.Download(x, elements_), sums), 0);
    gpu_.report.Check(name_ + ", norm, in one graph",
                      BytesThatDiffer(gpu_.Download(out, elements_), Norm(gpu_.Upload(sums))), 0);
  }

  GpuContext& gpu_;
  const SumCase of_;
  const std::string name_;
  const size_t elements_;
  const int64_t stride_;
  float* const weight_;
  void* const scratch_;
  std::vector<uint16_t*> rows_, matrices_;
  std::vector<float*> boxes_;
};

void CheckWaits(GpuContext& gpu) {
  const auto words = gpu.device.AllocatePinned(2 * sizeof(uint32_t));
  if (!words.ok()) return gpu.report.Fail("all-reduce, waits", std::string(words.status().message()));
  auto* const abort = static_cast<volatile uint32_t*>((*words)->data());
  volatile uint32_t* const error = abort + 1;
  for (const uint32_t expected : {device::kWaitTimedOut, device::kWaitAborted}) {
    *abort = expected == device::kWaitAborted;
    *error = 0;
    gpu.table.all_reduce->add_terms(gpu.stream,
                                    {.num_ranks = 2,
                                     .terms = gpu.NewZeroed<float>(2 * 512),
                                     .term_stride = 512,
                                     .x = gpu.NewZeroed<float>(512),
                                     .num_rows = 1,
                                     .hidden_size = 512,
                                     .abort = const_cast<const uint32_t*>(abort),
                                     .error = const_cast<uint32_t*>(error),
                                     .timeout_us = expected == device::kWaitTimedOut ? 2000u : 20'000'000u});
    const absl::Status status = gpu.device.Synchronize(gpu.stream);
    if (!status.ok()) return gpu.report.Fail("all-reduce, waits", std::string(status.message()));
    gpu.report.Check("all-reduce, a wait that ends by itself", *error == expected ? 0 : 1, 0);
  }
}

}  // namespace

void CheckAllReduce(GpuContext& gpu) {
  const std::vector<SumCase> cases = {{2, 5120, 320, 1}, {4, 5120, 320, 8},  {2, 5120, 160, 33}, {4, 5120, 160, 64},
                                      {3, 4096, 96, 5},  {2, 256, 2080, 17}, {2, 5632, 64, 2},   {4, 8192, 64, 3}};
  for (const SumCase& of : gpu.Cases(cases, 2)) {
    SumCheck(gpu, of).Run();
    gpu.FreeAll();
  }
  CheckWaits(gpu);
  gpu.FreeAll();
}

}  // namespace winnow
