#include "kernels/cuda/device/confined_stream.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/device/driver_function.h"

namespace winnow::device {
namespace {

// The driver's functions for parts of a device.
struct Driver {
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDeviceGetDevResource) resource_of = nullptr;
  decltype(&cuDevSmResourceSplitByCount) split = nullptr;
  decltype(&cuDevResourceGenerateDesc) describe = nullptr;
  decltype(&cuGreenCtxCreate) create = nullptr;
  decltype(&cuGreenCtxStreamCreate) new_stream = nullptr;
};

absl::StatusOr<Driver> FindDriver() {
  constexpr unsigned kVersion = 12050;
  const auto find = [](const char* name, auto* function) { return FindDriverFunction(name, kVersion, function); };
  Driver driver;
  if (find("cuDeviceGet", &driver.device_get) && find("cuDeviceGetDevResource", &driver.resource_of) &&
      find("cuDevSmResourceSplitByCount", &driver.split) && find("cuDevResourceGenerateDesc", &driver.describe) &&
      find("cuGreenCtxCreate", &driver.create) && find("cuGreenCtxStreamCreate", &driver.new_stream)) {
    return driver;
  }
  return absl::UnimplementedError("this driver confines no stream to a part of the multiprocessors");
}

// Where it refuses, as in a process that shares a GPU with others, there are none either.
absl::Status ToStatus(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(what, ": error ", static_cast<int>(result)));
}

struct Confined {
  std::mutex mutex;
  std::map<Stream, int> multiprocessors;
};
Confined& AllConfined() {
  static auto* const confined = new Confined();
  return *confined;
}

}  // namespace

absl::StatusOr<Stream> NewConfinedStream(int ordinal, int num_multiprocessors, int priority) {
  WINNOW_ASSIGN_OR_RETURN(const Driver driver, FindDriver());
  CUdevice device;
  CUdevResource all, part, rest;
  unsigned groups = 1;
  CUdevResourceDesc description;
  CUgreenCtx context;
  CUstream stream;
  WINNOW_RETURN_IF_ERROR(ToStatus(driver.device_get(&device, ordinal), "cuDeviceGet"));
  WINNOW_RETURN_IF_ERROR(ToStatus(driver.resource_of(device, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource"));
  WINNOW_RETURN_IF_ERROR(
      ToStatus(driver.split(&part, &groups, &all, &rest, /*useFlags=*/0, static_cast<unsigned>(num_multiprocessors)),
               "cuDevSmResourceSplitByCount"));
  WINNOW_RETURN_IF_ERROR(ToStatus(driver.describe(&description, &part, 1), "cuDevResourceGenerateDesc"));
  WINNOW_RETURN_IF_ERROR(
      ToStatus(driver.create(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM), "cuGreenCtxCreate"));
  WINNOW_RETURN_IF_ERROR(
      ToStatus(driver.new_stream(&stream, context, CU_STREAM_NON_BLOCKING, priority), "cuGreenCtxStreamCreate"));
  Confined& confined = AllConfined();
  const std::lock_guard lock(confined.mutex);
  confined.multiprocessors[stream] = static_cast<int>(part.sm.smCount);
  return stream;
}

int MultiprocessorsOf(Stream stream) {
  Confined& confined = AllConfined();
  const std::lock_guard lock(confined.mutex);
  const auto known = confined.multiprocessors.find(stream);
  return known == confined.multiprocessors.end() ? 0 : known->second;
}

}  // namespace winnow::device
