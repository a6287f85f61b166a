#include "tests/transport/links.h"
#include "transport/shm/shared_memory_path.h"

namespace winnow {

const std::vector<TransportUnderTest>& KindsUnderTest() {
  static const std::vector<TransportUnderTest> kinds = {
      kInproc,
      {"UcxPosix", "posix,self"},
      {"UcxSysv", "sysv,self"},
      kUcxTcp,
      {"SharedMemory", "posix,self", "shared", [](uint64_t) {
         return PayloadPathKind{.name = "shared", .make = [](size_t window_bytes) {
                                  return NewSharedMemoryPath({.window_bytes = window_bytes});
                                }};
       }}};
  return kinds;
}

}  // namespace winnow
