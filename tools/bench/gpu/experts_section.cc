#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/bench/gpu/checks/experts_check.h"
#include "tools/bench/gpu/matmul_weights.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

using device::ExpertMatrices;
using device::ExpertRows;

// Of Qwen3-30B-A3B, several layers in turn so that no weights stay in the L2.
class BenchLayers {
 public:
  static constexpr int kLayers = 3;
  BenchLayers(GpuContext& gpu, int max_rows) : gpu_(gpu) {
    experts_ = {
        .num_experts = 128, .hidden_size = 2048, .intermediate_size = 768, .experts_per_token = 8, .normalizes = true};
    const size_t elements = size_t{128} * 2048 * 768;
    for (int layer = 0; layer < kLayers; ++layer) {
      uint16_t* const gate_up = gpu.New<uint16_t>(2 * elements);
      uint16_t* const down = gpu.New<uint16_t>(elements);
      gpu.table.elementwise->fill_normal(gpu.stream, gate_up, 2 * elements, layer, 0.02f);
      gpu.table.elementwise->fill_normal(gpu.stream, down, elements, 10 + layer, 0.03f);
      std::vector<float> router(size_t{128} * 2048);
      std::normal_distribution<float> normal(0, 0.05f);
      for (float& value : router) value = normal(gpu.random);
      layers_[layer] = experts_;
      layers_[layer].router = gpu.Upload(router);
      layers_[layer].gate_up = gate_up;
      layers_[layer].down = down;
    }
    x_ = gpu.Upload(RandomBf16(gpu, static_cast<size_t>(max_rows) * 2048, 1));
    device::Arena counting(nullptr);
    device::RoutedRows::Take(counting, experts_, max_rows);
    device::Arena arena(gpu.NewZeroed<uint8_t>(counting.used_bytes()));
    routed_ = device::RoutedRows::Take(arena, experts_, max_rows);
    hidden_ = gpu.New<uint16_t>(static_cast<size_t>(routed_.max_pairs) * 768);
    sums_ = gpu.New<float>(static_cast<size_t>(routed_.max_pairs) * 2048);
    residual_ = gpu.NewZeroed<float>(static_cast<size_t>(max_rows) * 2048);
  }

  // All of it, or some parts, which then work on what was routed last.
  enum Part : unsigned { kRoute = 1, kGateUp = 2, kDown = 4, kAdd = 8, kAll = 15 };
  void Run(device::Stream stream, int layer, ExpertRows rows, int num_rows, unsigned parts) const {
    const device::ExpertKernels& kernels = *gpu_.table.experts;
    const ExpertMatrices& of = layers_[layer];
    if ((parts & kRoute) != 0)
      kernels.route(stream, rows, {.experts = of, .x = x_, .num_rows = num_rows, .routed = routed_});
    if ((parts & kGateUp) != 0) {
      kernels.gate_up(stream, rows, {.experts = of, .routed = routed_, .x = x_, .num_rows = num_rows, .out = hidden_});
    }
    if ((parts & kDown) != 0) {
      kernels.down(stream, rows, {.experts = of, .routed = routed_, .x = hidden_, .num_rows = num_rows, .out = sums_});
    }
    if ((parts & kAdd) != 0) {
      kernels.add(stream,
                  {.experts = of, .routed = routed_, .pairs = sums_, .num_rows = num_rows, .residual = residual_});
    }
  }
  double Touched(int num_rows) const {
    Run(gpu_.stream, 0, ExpertRows::kFew, num_rows, kRoute);
    return gpu_.Download(routed_.num_active, 1)[0];
  }

 private:
  GpuContext& gpu_;
  ExpertMatrices experts_, layers_[kLayers];
  device::RoutedRows routed_;
  const uint16_t* x_;
  uint16_t* hidden_;
  float *sums_, *residual_;
};

void Bench(GpuContext& gpu) {
  constexpr double kMatrixBytes = 2048.0 * 768 * 2;
  const BenchLayers layers(gpu, 8192);
  const std::pair<const char*, unsigned> parts[] = {{"all", BenchLayers::kAll},
                                                    {"route", BenchLayers::kRoute},
                                                    {"gate and up", BenchLayers::kGateUp},
                                                    {"down", BenchLayers::kDown},
                                                    {"add", BenchLayers::kAdd}};
  for (const int num_rows : {1, 8, 32, 64}) {
    const double touched = layers.Touched(num_rows);
    for (const auto& [name, part] : parts) {
      const double us = gpu.MedianUs(
          BenchLayers::kLayers, 12,
          [&](device::Stream stream, int layer) { layers.Run(stream, layer, ExpertRows::kFew, num_rows, part); }, 7);
      const double bytes =
          touched * kMatrixBytes * (((part & BenchLayers::kGateUp) != 0 ? 2 : 0) + ((part & BenchLayers::kDown) != 0)) +
          ((part & BenchLayers::kRoute) != 0 ? 128 * 2048 * 4.0 : 0);
      gpu.report.Time(absl::StrCat("experts of 30B-A3B, ", num_rows, " rows, ", touched, " touched, ", name), us,
                      bytes / gpu.read_bytes_per_us);
    }
  }
  for (const int num_rows : {2048, 8192}) {
    layers.Touched(num_rows);
    for (const auto& [name, part] : parts) {
      const double us = gpu.MedianUs(
          BenchLayers::kLayers, 6,
          [&](device::Stream stream, int layer) { layers.Run(stream, layer, ExpertRows::kMany, num_rows, part); }, 5);
      const double flops = num_rows * 8 * kMatrixBytes *
                           (((part & BenchLayers::kGateUp) != 0 ? 2 : 0) + ((part & BenchLayers::kDown) != 0));
      gpu.report.Time(absl::StrCat("experts of 30B-A3B, chunk of ", num_rows, ", ", name, ", ",
                                   static_cast<int>(flops / us / 1e6), " TFLOP/s"),
                      us, flops / 790e6);
    }
  }
  gpu.FreeAll();
}

}  // namespace

GpuSection ExpertsSection() {
  return {"experts", CheckExperts, Bench};
}

}  // namespace winnow
