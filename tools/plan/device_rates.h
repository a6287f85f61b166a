#pragma once
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace winnow {

// Rates and memory of what computes or selects: a GPU, or the cores and the memory of a host. The defaults are an
// H200's.
struct DeviceRates {
  double memory_bytes_per_s = 4.8e12;
  double flops_per_s = 790e12;      // dense bf16, as measured
  double link_bytes_per_s = 450e9;  // NVLink, one direction; a host's: PCIe to its GPUs
  double memory_bytes = 139.0 * (1 << 30);

  friend bool operator==(const DeviceRates&, const DeviceRates&) = default;
};

// A GPU by its datasheet.
struct GpuSheet {
  std::string_view name;         // "H200"
  std::string_view description;  // "H200, 141 GB"
  DeviceRates rates;
};

// That of the name, or of what the driver calls a GPU ("NVIDIA H200"); NOT_FOUND lists those that are known.
absl::StatusOr<GpuSheet> FindGpuSheet(std::string_view name);

// "H200, H100, ..." for help texts.
std::string GpuSheetNames();

}  // namespace winnow
