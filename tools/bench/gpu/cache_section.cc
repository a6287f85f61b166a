#include "tools/bench/gpu/checks/cache_checks.h"
#include "tools/bench/gpu/checks/int8_rows_check.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

void Check(GpuContext& gpu) {
  CheckAppend(gpu);
  for (const int head_dim : gpu.Cases<int>({64, 96, 128, 256})) {
    for (const int page_tokens : {8, 16, 32}) CheckIndexOfInt8Rows(gpu, head_dim, page_tokens);
    CheckMassOfInt8Rows(gpu, head_dim);
  }
  CheckPageGroups(gpu);
  CheckAssignSlots(gpu);
  CheckMoves(gpu);
  CheckFlags(gpu);
  CheckPeers(gpu);
  CheckFlashD2H(gpu);
}

}  // namespace

GpuSection CacheSection() {
  return {"cache", Check, BenchCache};
}

}  // namespace winnow
