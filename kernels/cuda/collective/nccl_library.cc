#include "kernels/cuda/collective/nccl_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace winnow::device {
namespace {

struct Loaded {
  NcclLibrary library = {};
  absl::Status status;
};

Loaded Load() {
  Loaded loaded;
  void* const handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    loaded.status = absl::UnavailableError(absl::StrCat("NCCL: ", dlerror()));
    return loaded;
  }
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr) loaded.status = absl::UnavailableError(absl::StrCat("libnccl.so.2 has no ", name));
  };
  find(loaded.library.get_version, "ncclGetVersion");
  find(loaded.library.get_unique_id, "ncclGetUniqueId");
  find(loaded.library.comm_init, "ncclCommInitRankConfig");
  find(loaded.library.comm_error, "ncclCommGetAsyncError");
  find(loaded.library.comm_abort, "ncclCommAbort");
  find(loaded.library.send, "ncclSend");
  find(loaded.library.receive, "ncclRecv");
  find(loaded.library.error_string, "ncclGetErrorString");
  if (!loaded.status.ok()) return loaded;
  int version = 0;
  // Non-blocking communicators came with 2.14.
  if (loaded.library.get_version(&version) != ncclSuccess || version < NCCL_VERSION(2, 14, 0)) {
    loaded.status = absl::UnavailableError(absl::StrCat("NCCL ", version, " is too old: 2.14 is the least"));
  }
  return loaded;
}

}  // namespace

absl::StatusOr<const NcclLibrary*> LoadNccl() {
  static const Loaded loaded = Load();
  if (!loaded.status.ok()) return loaded.status;
  return &loaded.library;
}

}  // namespace winnow::device
