#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/flash_d2h.h"
#include "model/device/device_prefill.h"
#include "tools/engine/measurement.h"

namespace winnow {

// Times prefill of one prompt of random tokens, alone and with its rows on their way to blocks in host memory. Borrows
// everything. One thread.
class PrefillBench {
 public:
  struct Options {
    int chunk_tokens = 4096;
    uint64_t seed = 1;
  };
  PrefillBench(const device::DeviceTable& table, device::Device& device, const DeviceWeights& weights,
               const Options& options)
      : table_(table), device_(device), weights_(weights), options_(options) {}

  absl::StatusOr<PrefillMeasurement> Run(uint32_t tokens);

 private:
  // flops per microsecond of a large matrix.
  absl::StatusOr<double> GemmRate();
  double Flops(uint32_t tokens) const;
  absl::StatusOr<double> TimeUntilSaved(DevicePrefill& prefill, const uint32_t* ids, uint32_t tokens,
                                        std::byte* blocks);

  const device::DeviceTable& table_;
  device::Device& device_;
  const DeviceWeights& weights_;
  const Options options_;
};

}  // namespace winnow
