#include "kernels/plugin/plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"

namespace winnow::device {
namespace {

constexpr const char* kPathVariable = "WINNOW_CUDA_PLUGIN";

// The path that was asked for; null without one.
const char* AskedPath() {
  const char* path = std::getenv(kPathVariable);
  return path == nullptr || *path == '\0' ? nullptr : path;
}

std::vector<std::string> Candidates() {
  if (AskedPath() != nullptr) return {AskedPath()};
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<std::string> candidates;
  // Beside the program, in a bundle's lib/, and in the build tree as seen from <build>/<folder>/<program>.
  for (const char* relative : {"", "../lib/", "../kernels/cuda/", "../../kernels/cuda/", "../../../kernels/cuda/"}) {
    candidates.push_back((folder / relative / "libwinnow_cuda.so").lexically_normal());
  }
  return candidates;
}

absl::StatusOr<const DeviceTable*> Load() {
  std::string path;
  for (const std::string& candidate : Candidates()) {
    if (std::filesystem::exists(candidate)) {
      path = candidate;
      break;
    }
  }
  if (path.empty()) {
    const char* asked = AskedPath();
    return absl::UnavailableError(asked != nullptr
                                      ? absl::StrCat("no CUDA: there is no file ", asked, " (", kPathVariable, ")")
                                      : "no CUDA: libwinnow_cuda.so is not beside the program (built without nvcc?)");
  }
  // The plugin brings libraries of hundreds of megabytes with it: not before there is a driver. A plugin that was asked
  // for by its path may need none.
  if (AskedPath() == nullptr) {
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver == nullptr) return absl::UnavailableError("no CUDA: no NVIDIA driver (libcuda.so.1) on this machine");
    dlclose(driver);
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::UnavailableError(absl::StrCat("no CUDA: ", dlerror()));
  const auto entry = reinterpret_cast<const DeviceTable* (*)()>(dlsym(library, "winnow_cuda_table"));
  const DeviceTable* table = entry == nullptr ? nullptr : entry();
  if (table == nullptr || table->abi != kDeviceAbi) {
    return absl::UnavailableError(absl::StrCat("no CUDA: ", path, " is of another version of winnow"));
  }
  if (table->device_count() == 0) return absl::UnavailableError(absl::StrCat("no CUDA: ", table->why_none()));
  return table;
}

}  // namespace

absl::StatusOr<const DeviceTable*> LoadPlugin() {
  static const absl::StatusOr<const DeviceTable*> table = Load();
  return table;
}

}  // namespace winnow::device
