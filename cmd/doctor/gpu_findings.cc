#include "cmd/doctor/gpu_findings.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "common/base/gibibytes.h"
#include "common/base/status.h"
#include "kernels/plugin/plugin.h"

namespace winnow {
namespace {

// 13020 -> 13.2
std::string DriverVersion(int version) {
  return version == 0 ? "none" : absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// 22703 -> 2.27.3
std::string NcclVersion(int version) {
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

bool HasDriver() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver != nullptr) dlclose(driver);
  return driver != nullptr;
}

Finding Nccl() {
  Finding finding{.subject = "nccl"};
  void* library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    finding.what = "not installed (libnccl.so.2): GPUs of several hosts exchange rows through host memory";
    return finding;
  }
  const auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int version = 0;
  finding.what = get_version != nullptr && get_version(&version) == 0 ? NcclVersion(version) : "of unknown version";
  dlclose(library);
  return finding;
}

Finding Gpu(const device::DeviceTable& table, int ordinal) {
  const absl::StatusOr<std::unique_ptr<device::Device>> device = table.open_device(ordinal);
  if (!device.ok()) {
    return {Verdict::kWarn, "gpu", std::string(device.status().message()), "this GPU is not used"};
  }
  const device::DeviceInfo& info = (*device)->info();
  return {.subject = "gpu",
          .what = absl::StrCat(ordinal, ": ", info.name, ", compute capability ", info.compute_major, ".",
                               info.compute_minor, ", ", info.num_multiprocessors, " multiprocessors, ",
                               Gibibytes(static_cast<double>(info.free_bytes)), " free of ",
                               Gibibytes(static_cast<double>(info.total_bytes)), ", PCI ", info.pci_bus_id)};
}

Finding PeerAccess(const device::DeviceTable& table, int count) {
  std::string missing;
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      if (from != to && !table.can_access_peer(from, to)) {
        absl::StrAppend(&missing, missing.empty() ? "" : ", ", from, " to ", to);
      }
    }
  }
  Finding finding{.subject = "peer access", .what = missing.empty() ? "all pairs of GPUs" : "not from GPU " + missing};
  if (!missing.empty()) {
    finding.verdict = Verdict::kWarn;
    finding.advice = "rows between these GPUs go through host memory";
  }
  return finding;
}

}  // namespace

std::vector<Finding> GpuFindings() {
  const absl::StatusOr<const device::DeviceTable*> loaded = device::LoadPlugin();
  if (!loaded.ok()) {
    Finding finding{.subject = "gpu", .what = absl::StrCat(loaded.status().message(), "; the CPU does everything")};
    if (HasDriver()) {
      finding.verdict = Verdict::kWarn;
      finding.advice = "there is an NVIDIA driver: with what is missing, GPUs could be used";
    }
    return {finding};
  }
  const device::DeviceTable& table = **loaded;
  const int count = table.device_count();
  std::vector<Finding> findings;
  for (int ordinal = 0; ordinal < count; ++ordinal) findings.push_back(Gpu(table, ordinal));
  if (count > 1) findings.push_back(PeerAccess(table, count));
  const device::DriverVersions versions = table.versions();
  findings.push_back({.subject = "cuda",
                      .what = absl::StrCat("runtime ", DriverVersion(versions.runtime), ", driver for up to ",
                                           DriverVersion(versions.driver))});
  findings.push_back(Nccl());
  return findings;
}

}  // namespace winnow
