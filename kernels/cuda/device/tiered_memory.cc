#include "kernels/cuda/device/tiered_memory.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/device/driver_function.h"

namespace winnow::device {
namespace {

// The driver's functions for ranges of addresses.
struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
};

absl::StatusOr<Driver> FindDriver() {
  constexpr unsigned kVersion = 12020;
  const auto find = [](const char* name, auto* function) { return FindDriverFunction(name, kVersion, function); };
  Driver driver;
  if (find("cuMemGetAllocationGranularity", &driver.granularity) && find("cuMemAddressReserve", &driver.reserve) &&
      find("cuMemAddressFree", &driver.free) && find("cuMemCreate", &driver.create) &&
      find("cuMemRelease", &driver.release) && find("cuMemMap", &driver.map) && find("cuMemUnmap", &driver.unmap) &&
      find("cuMemSetAccess", &driver.set_access)) {
    return driver;
  }
  return absl::UnimplementedError("this driver maps no host memory beside a GPU's");
}

size_t RoundedUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// A reserved range and what is mapped in it, given back when it dies.
class TieredMemory final : public DeviceMemory {
 public:
  TieredMemory(const Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  ~TieredMemory() override {
    cudaSetDevice(ordinal_);
    cudaDeviceSynchronize();
    if (mapped_ > 0) driver_.unmap(range_, mapped_);
    if (reserved_ > 0) driver_.free(range_, reserved_);
  }
  void* data() const override { return reinterpret_cast<void*>(range_); }
  size_t bytes() const override { return reserved_; }

  absl::Status Reserve(size_t bytes, size_t granularity) {
    if (driver_.reserve(&range_, bytes, granularity, 0, 0) != CUDA_SUCCESS) {
      return absl::ResourceExhaustedError(absl::StrCat("no range of ", bytes, " addresses"));
    }
    reserved_ = bytes;
    return absl::OkStatus();
  }

  // Behind what is mapped already.
  absl::Status Map(const CUmemAllocationProp& properties, size_t bytes, const char* where) {
    if (bytes == 0) return absl::OkStatus();
    CUmemGenericAllocationHandle handle = 0;
    if (const CUresult error = driver_.create(&handle, bytes, &properties, 0); error != CUDA_SUCCESS) {
      return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes of ", where, ": driver error ", error));
    }
    const CUresult mapped = driver_.map(range_ + mapped_, bytes, 0, handle, 0);
    driver_.release(handle);  // the mapping keeps it
    if (mapped != CUDA_SUCCESS) return absl::InternalError(absl::StrCat("cuMemMap of ", where, ": error ", mapped));
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = ordinal_;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    const CUresult allowed = driver_.set_access(range_ + mapped_, bytes, &access, 1);
    mapped_ += bytes;
    if (allowed == CUDA_SUCCESS) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("cuMemSetAccess of ", where, ": error ", allowed));
  }

 private:
  const Driver driver_;
  const int ordinal_;
  CUdeviceptr range_ = 0;
  size_t reserved_ = 0, mapped_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateTieredMemory(int ordinal, size_t device_bytes,
                                                                   size_t host_bytes) {
  cudaSetDevice(ordinal);
  WINNOW_ASSIGN_OR_RETURN(const Driver driver, FindDriver());
  CUmemAllocationProp device = {}, host = {};
  device.type = host.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  device.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  device.location.id = ordinal;
  int node = -1;
  cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, ordinal);
  host.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  host.location.id = std::max(node, 0);
  size_t granularity = 0;
  for (const CUmemAllocationProp& properties : {device, host}) {
    size_t unit = 0;
    if (driver.granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS) {
      return absl::UnimplementedError("this driver maps no host memory beside a GPU's");
    }
    granularity = std::max(granularity, unit);
  }
  const size_t in_device = RoundedUp(device_bytes, granularity);
  const size_t all = RoundedUp(device_bytes + host_bytes, granularity);
  auto memory = std::make_unique<TieredMemory>(driver, ordinal);
  WINNOW_RETURN_IF_ERROR(memory->Reserve(std::max(all, granularity), granularity));
  WINNOW_RETURN_IF_ERROR(memory->Map(device, in_device, "the GPU's memory"));
  WINNOW_RETURN_IF_ERROR(memory->Map(host, all - std::min(all, in_device), "DRAM"));
  return memory;
}

}  // namespace winnow::device
