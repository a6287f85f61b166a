#include "cmd/plan/planned_machine.h"

#include <fstream>
#include <limits>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "cmd/role/machine.h"
#include "kernels/kernel_table.h"
#include "kernels/plugin/plugin.h"
#include "tools/machine/machine_flops.h"
#include "tools/machine/machine_read.h"

namespace winnow {
namespace {

constexpr double kMachineGib = 1 << 30;
constexpr size_t kReadBytes = size_t{256} << 20;  // beyond the caches of most machines
constexpr std::string_view kAssumedGpu = "H200";
constexpr double kPcieBytesPerSecond = 55e9;

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos) return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return "a CPU";
}

// GPUs of this machine: all like the first.
absl::Status FindGpus(PlannedMachine& machine) {
  WINNOW_ASSIGN_OR_RETURN(const device::DeviceTable* table, device::LoadPlugin());
  WINNOW_ASSIGN_OR_RETURN(const std::unique_ptr<device::Device> device, table->open_device(0));
  const absl::StatusOr<GpuSheet> sheet = FindGpuSheet(device->info().name);
  const auto free_bytes = static_cast<double>(device->info().free_bytes);
  machine.table = table;
  machine.gpus = table->device_count();
  if (sheet.ok()) machine.gpu = sheet->rates;
  machine.gpu.memory_bytes = free_bytes;
  machine.gpu_name = absl::StrFormat("%s, found here, %.1f GiB free%s", device->info().name, free_bytes / kMachineGib,
                                     sheet.ok() ? "" : "; its datasheet is not known: rates are an H200's");
  machine.host_is_given = true;
  return absl::OkStatus();
}

absl::Status AssumeGpu(const MachineOptions& options, PlannedMachine& machine) {
  absl::StatusOr<GpuSheet> sheet = FindGpuSheet(options.gpu.empty() ? kAssumedGpu : options.gpu);
  if (!sheet.ok()) return absl::InvalidArgumentError(absl::StrCat("--gpu: ", sheet.status().message()));
  machine.has_gpus = false;
  machine.gpus = std::numeric_limits<int>::max();
  machine.gpu = sheet->rates;
  machine.gpu_name = absl::StrCat(std::string(sheet->description), ", by its datasheet",
                                  options.gpu.empty() ? " (assumed: no GPU is here, and --gpu names none)" : "");
  return absl::OkStatus();
}

absl::Status MeasureHost(const MachineOptions& options, PlannedMachine& machine) {
  WINNOW_ASSIGN_OR_RETURN(const KernelTable* kernels, CpuKernels());
  const int cores = UsableCores();
  const std::unique_ptr<Executor> executor = kernels->new_executor(cores);
  machine.host.flops_per_s = MachineFlops(*kernels, *executor);
  machine.host.link_bytes_per_s = kPcieBytesPerSecond;
  machine.host.memory_bytes_per_s =
      options.memory_rate > 0 ? options.memory_rate
                              : static_cast<double>(kReadBytes) / MachineReadSeconds(*kernels, *executor, kReadBytes);
  machine.host.memory_bytes = static_cast<double>(options.memory_bytes > 0 ? options.memory_bytes : FreeMemoryBytes());
  machine.host_is_given = machine.host_is_given || options.memory_bytes > 0;
  machine.host_name =
      absl::StrFormat("CPU: %d cores of %s, %s kernels, %.1f GiB %s, %.1f GB/s %s, %.2f TFLOP/s measured", cores,
                      CpuName(), std::string(kernels->name), machine.host.memory_bytes / kMachineGib,
                      options.memory_bytes > 0 ? "given" : "free", machine.host.memory_bytes_per_s / 1e9,
                      options.memory_rate > 0 ? "given" : "measured", machine.host.flops_per_s / 1e12);
  return absl::OkStatus();
}

}  // namespace

void MachineOptions::Declare(Fields& fields) {
  fields.Text("gpu", &gpu,
              absl::StrCat("GPU to plan for, by its datasheet: ", GpuSheetNames(),
                           ". Empty = this machine's, or an H200 where there is none."));
  fields.Integer("gpus", &gpus, "GPUs of the machine; 0 = this machine's, or as many as a placement needs.", 0, 64);
  fields.Number("gpu-memory", &gpu_memory, "Memory of a GPU, bytes; 0 = the datasheet's, or what is free.", 0, 1e13);
  fields.Number("gpu-rate", &gpu_rate, "Its bandwidth, bytes/s; 0 = the datasheet's.", 0, 1e14);
  fields.Number("flops", &flops, "Its dense matrix rate, operations/s; 0 = what the datasheet's lets products reach.",
                0, 1e17);
  fields.Number("link-rate", &link_rate, "Link between GPUs, bytes/s in one direction; 0 = the datasheet's.", 0, 1e13);
  fields.Bytes(
      "memory", &memory_bytes,
      "Memory of the host that is free for Winnow; 0 = what is free here. With a GPU that is only assumed, 0 = "
      "as much as the KV needs, which the plan says.");
  fields.Number("memory-rate", &memory_rate, "Bandwidth of the host's memory, bytes/s; 0 = measured here.", 0, 1e13);
}

absl::StatusOr<PlannedMachine> DescribeMachine(const MachineOptions& options) {
  PlannedMachine machine;
  if (!options.gpu.empty() || !FindGpus(machine).ok()) WINNOW_RETURN_IF_ERROR(AssumeGpu(options, machine));
  if (options.gpus > 0) machine.gpus = options.gpus;
  const auto take = [](double given, double& rate) { rate = given > 0 ? given : rate; };
  take(options.gpu_memory, machine.gpu.memory_bytes);
  take(options.gpu_rate, machine.gpu.memory_bytes_per_s);
  take(options.flops, machine.gpu.flops_per_s);
  take(options.link_rate, machine.gpu.link_bytes_per_s);
  absl::StrAppendFormat(&machine.gpu_name, ": %.1f GiB, %.3g TB/s, %.3g TFLOP/s, %.3g GB/s between GPUs",
                        machine.gpu.memory_bytes / kMachineGib, machine.gpu.memory_bytes_per_s / 1e12,
                        machine.gpu.flops_per_s / 1e12, machine.gpu.link_bytes_per_s / 1e9);
  WINNOW_RETURN_IF_ERROR(MeasureHost(options, machine));
  return machine;
}

}  // namespace winnow
