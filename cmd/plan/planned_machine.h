#pragma once
#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/config/fields.h"
#include "kernels/plugin/device_table.h"
#include "tools/plan/device_rates.h"

namespace winnow {

// What a plan is for, where it is not this machine as it is.
struct MachineOptions {
  std::string gpu;
  int gpus = 0;
  double gpu_memory = 0, gpu_rate = 0, flops = 0, link_rate = 0;
  int64_t memory_bytes = 0;
  double memory_rate = 0;

  void Declare(Fields& fields);
};

// A machine with its rates, and where they come from.
struct PlannedMachine {
  int gpus = 0;                                // 0: there is none
  bool has_gpus = true;                        // they are here; otherwise assumed
  DeviceRates gpu;                             // of each; memory_bytes: what is free
  std::string gpu_name;                        // "H200, 141 GB, by its datasheet: 4.8 TB/s, ..."
  const device::DeviceTable* table = nullptr;  // of the GPUs here: what their kernels ask for
  DeviceRates host;                            // of its cores; memory_bytes: what is free
  bool host_is_given = false;                  // its memory, or found where the GPUs are
  std::string host_name;                       // "CPU: 2 cores, avx512bf16 kernels, ..."
};

// This machine, with what the options say otherwise: without a GPU here or named an H200 is assumed. Rates of the host
// are measured, for about half a second, where none is given. INVALID_ARGUMENT for GPUs without a datasheet.
absl::StatusOr<PlannedMachine> DescribeMachine(const MachineOptions& options);

}  // namespace winnow
