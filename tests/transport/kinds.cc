#include "tests/transport/links.h"
#include "transport/shm/shared_memory_path.h"

namespace winnow {
namespace {

PayloadPathKind SharedPath(uint64_t /*incarnation*/) {
  return {.name = "shared",
          .make = [](size_t window_bytes) { return NewSharedMemoryPath({.window_bytes = window_bytes}); }};
}

}  // namespace

const std::vector<TransportUnderTest>& KindsUnderTest() {
  static const std::vector<TransportUnderTest> kinds = {
      kInproc,
      {"UcxPosix", "posix,self"},
      {"UcxSysv", "sysv,self"},
      kUcxTcp,
      {"SharedMemory", "posix,self", "shared", SharedPath},
      {.name = "InprocEncrypted", .ucx_tls = "", .mode = DataPlaneMode::kEncrypted},
      {.name = "UcxPosixHeaders", .ucx_tls = "posix,self", .mode = DataPlaneMode::kAuto},
      {.name = "UcxTcpAuthenticated",
       .ucx_tls = "tcp,self",
       .notices_death = true,
       .mode = DataPlaneMode::kAuthenticated},
      {.name = "UcxTcpEncrypted", .ucx_tls = "tcp,self", .notices_death = true, .mode = DataPlaneMode::kEncrypted},
      {.name = "SharedMemoryEncrypted",
       .ucx_tls = "posix,self",
       .path_name = "shared",
       .path = SharedPath,
       .mode = DataPlaneMode::kEncrypted}};
  return kinds;
}

}  // namespace winnow
