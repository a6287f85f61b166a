#pragma once
#include <nccl.h>

#include "absl/status/statusor.h"

namespace winnow::device {

// What NcclPair uses of libnccl.so.2, found at run time: a machine without it has everything but this transport.
struct NcclLibrary {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) comm_init;
  decltype(&ncclCommGetAsyncError) comm_error;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclGetErrorString) error_string;
};

// Loaded once per process. UNAVAILABLE says what is missing.
absl::StatusOr<const NcclLibrary*> LoadNccl();

}  // namespace winnow::device
